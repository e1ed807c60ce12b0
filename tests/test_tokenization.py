import json
import unicodedata
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Raw

import crocodil
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import PRE_TOKENS, Tokenizer

SOURCES = [file.read_text() for file in sorted(Path(crocodil.__file__).parent.rglob("*.py"))]
TRICKY = [
    "",
    " ",
    "\n\n\n",
    "def f():\n    if x:\n\treturn 1\n\n\n\nclass A:\n        pass",
    "x   =  3 # two  blanks   \t end",
    "größe = 'naïve' + '中文' + '𝄞' + '\x00\x7f'",
    "a\r\nb\x0cc\u2028d",
    "<|mask|><|endoftext|> and <|pad|>",
    "".join(map(chr, range(32, 256))),
]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SOURCES, vocab_size=1000)


def test_every_text_comes_back_exactly(tokenizer):
    for text in [*TRICKY, *SOURCES]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode_all(TRICKY) == [tokenizer.encode(text) for text in TRICKY]


def test_the_vocabulary_has_the_size_asked_for_with_special_tokens_first(tokenizer):
    assert len(tokenizer) == 1000
    special = tokenizer.special
    assert (special.mask, special.bos, special.eos, special.pad) == (0, 1, 2, 3)


def test_no_text_becomes_a_special_token(tokenizer):
    ids = tokenizer.encode("<|mask|> <|startoftext|> <|endoftext|> <|pad|>")
    assert min(ids) > 3


def test_a_line_break_and_its_indentation_are_one_token(tokenizer):
    assert len(tokenizer.encode("\n    ")) == 1
    assert len(tokenizer.encode("\n        ")) == 1
    assert len(tokenizer.encode("\n\n\n")) == 1


def test_decoding_stops_at_the_end_token_and_skips_the_beginning(tokenizer):
    special, text = tokenizer.special, tokenizer.encode("x = 1")
    assert tokenizer.decode([special.bos, *text, special.eos, *text]) == "x = 1"
    assert tokenizer.decode([special.bos, special.mask, *text]) == "x = 1"


def test_training_again_gives_the_same_tokenizer(tokenizer, tmp_path):
    Tokenizer.train(SOURCES, vocab_size=1000).save(tmp_path / "again.json")
    tokenizer.save(tmp_path / "once.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "once.json").read_bytes()


def test_a_saved_tokenizer_is_a_standard_file_and_loads_through_the_same_door(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.special == tokenizer.special
    assert [loaded.encode(text) for text in TRICKY] == [tokenizer.encode(text) for text in TRICKY]
    assert {"model", "pre_tokenizer", "decoder", "added_tokens"} <= set(
        json.loads((tmp_path / "tokenizer.json").read_text())
    )
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>"], (2, 0, 1, 1)),  # as LLaDA's
        (["<|endoftext|>", "<|im_start|>"], (None, 0, 0, 0)),  # as Qwen's: no mask, no beginning
    ],
)
def test_the_special_tokens_of_llada_and_qwen_are_known_by_name(tmp_path, names, expected):
    raw = Raw(models.BPE())
    raw.add_special_tokens(names)
    raw.save(str(tmp_path / "tokenizer.json"))
    special = Tokenizer.load(tmp_path / "tokenizer.json").special
    assert (special.mask, special.bos, special.eos, special.pad) == expected


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is missing"):
        Tokenizer.load(tmp_path / "nowhere.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not a usable tokenizer\.json"):
        Tokenizer.load(tmp_path / "bad.json")
    with pytest.raises(ValueError, match="vocab_size must be at least 260"):
        Tokenizer.train(SOURCES, vocab_size=100)


# ---------------------------------------------------------------- from one vocabulary to another

WORLD = [
    "print('😀😃😄', '👩‍👩‍👧', '🇩🇪')  # 中文字符, 日本語, 한국어",
    "e\u0301 and é, a\u0308\u0323, \u0301alone\n\t\tif x:\n\t    y\t=\t1\t",
    "<tool_call> <|endoftext|> <|mdm_mask|> größe\r\n\x00𝄞 \u2028 \ue000\uffff",
]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.fixture(scope="module")
def llada():
    """As LLaDA's: mask, beginning, end and another special token; tokens that hold parts of characters."""
    names = ["<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|eot_id|>"]
    return byte_level(PRE_TOKENS, 20 * WORLD, vocab_size=330, special_tokens=names)


@pytest.fixture(scope="module")
def qwen():
    """As Qwen's: other words, no mask, no beginning, text that was added as one token."""
    return byte_level(
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        SOURCES,
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        added=["<tool_call>"],
    )


def byte_level(words, texts, *, vocab_size, special_tokens, added=(), alphabet=BYTES) -> Tokenizer:
    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    raw.add_tokens(list(added))
    return Tokenizer(raw)


def bytes_of(tokenizer, ids) -> bytes:
    return b"".join(tokenizer.token_bytes[i] or b"" for i in ids)


def stretches(tokenizer, ids, hidden) -> list[bytes | int]:
    """What stands between hidden stretches, and how long those are; nothing where nothing stands."""
    edges = [0, *(np.flatnonzero(np.diff(hidden)) + 1), len(ids)]
    found = [
        int(end - start) if hidden[start] else bytes_of(tokenizer, ids[start:end])
        for start, end in pairwise(edges)
        if start < end
    ]
    return [stretch for stretch in found if stretch != b""]


def canvases(tokenizer, texts, *, length) -> np.ndarray:
    """Beginning, text, end, the rest end (decision D18); a long text is cut, even inside a character."""
    special = tokenizer.special
    return np.array(
        [([special.bos, *ids] + [special.eos] * length)[:length] for ids in tokenizer.encode_all(texts)]
    )


def visible_tokens(batch, row=0) -> list[int]:
    return batch.tokens[row][batch.valid[row] & ~batch.hidden[row]].tolist()


def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(tokenizer, llada, qwen):
    for one in (tokenizer, llada, qwen):
        for text in [*TRICKY, *WORLD, *SOURCES]:
            assert bytes_of(one, one.encode(text)) == text.encode()
        assert one.token_bytes[one.special.eos] is None
    assert qwen.token_bytes[qwen.encode("<tool_call>")[0]] == b"<tool_call>"


def test_a_visible_text_has_the_tokens_that_the_target_gives_it(llada, qwen):
    texts = [*TRICKY, *WORLD, *(text[:1000] for text in SOURCES)]
    tokens = canvases(llada, texts, length=1100)
    batch = Retokenizer(llada, qwen)(tokens, np.zeros_like(tokens, dtype=bool))
    for row, text in enumerate(texts):
        num_ends = int((tokens[row] == llada.special.eos).sum())
        assert num_ends > 0
        assert visible_tokens(batch, row) == qwen.encode(text) + num_ends * [qwen.special.eos]
    assert not batch.hidden.any()


@pytest.mark.parametrize("hidden_share", [0.05, 0.3, 0.7])
def test_no_byte_is_lost_or_moved_whatever_is_hidden(tokenizer, llada, qwen, hidden_share):
    draw = np.random.default_rng(7)
    for source, target in [(llada, qwen), (qwen, llada), (tokenizer, llada)]:
        tokens = canvases(source, 20 * WORLD, length=120)
        hidden = draw.random(tokens.shape) < hidden_share
        batch = Retokenizer(source, target)(tokens, hidden)
        for row in range(len(tokens)):
            before = stretches(source, tokens[row], hidden[row])
            valid = batch.valid[row]
            assert stretches(target, batch.tokens[row][valid], batch.hidden[row][valid]) == before


def test_a_character_that_is_cut_becomes_single_bytes(llada, qwen):
    ids = llada.encode("a🦎b")
    assert [llada.token_bytes[i] for i in ids] == [b"a", b"\xf0\x9f", b"\xa6", b"\x8e", b"b"]
    batch = Retokenizer(llada, qwen)(np.array([ids]), np.array([[False, False, True, False, False]]))
    assert [qwen.token_bytes[i] for i in visible_tokens(batch)] == [b"a", b"\xf0", b"\x9f", b"\x8e", b"b"]
    assert batch.hidden.tolist() == [[False, False, False, True, False, False]]


def test_a_batch_is_padded_on_the_right_and_rows_do_not_feel_each_other(llada, qwen):
    tokens = canvases(llada, [*WORLD, "", SOURCES[0]], length=90)
    hidden = np.random.default_rng(3).random(tokens.shape) < 0.4
    retokenize = Retokenizer(llada, qwen)
    batch = retokenize(tokens, hidden)
    lengths = batch.valid.sum(axis=1)
    assert (batch.valid == (np.arange(batch.tokens.shape[1]) < lengths[:, None])).all()
    assert lengths.max() == batch.tokens.shape[1] > lengths.min()
    for row, length in enumerate(lengths):
        alone = retokenize(tokens[row : row + 1], hidden[row : row + 1])
        assert (alone.tokens == batch.tokens[row, :length]).all()
        assert (alone.hidden == batch.hidden[row, :length]).all()
    assert (batch.tokens[~batch.valid | batch.hidden] == qwen.special.eos).all()


def test_what_is_hidden_leaves_no_trace(llada, qwen):
    tokens = canvases(llada, WORLD, length=90)
    hidden = np.random.default_rng(5).random(tokens.shape) < 0.4
    retokenize = Retokenizer(llada, qwen)
    told, masked = (retokenize(ids, hidden) for ids in (tokens, np.where(hidden, llada.special.mask, tokens)))
    assert all((one == other).all() for one, other in zip(told, masked, strict=True))


def test_hidden_places_stay_where_they_are(llada, qwen):
    word, end = llada.encode("x")[0], llada.special.eos
    retokenize = Retokenizer(llada, qwen)

    def hidden_places(ids, pattern):
        return retokenize(np.array([ids]), np.array([[sign == "?" for sign in pattern]])).hidden[0].tolist()

    assert hidden_places([word, word, end], "???") == [True, True, True]
    assert hidden_places([word, word, end], "??.") == [True, True, False]
    assert hidden_places([word, end, end], "..?") == [False, False, True]
    assert hidden_places([llada.special.bos, word, end], ".??") == [True, True]
    assert hidden_places([llada.special.bos, word, end], "?..") == [True, False, False]


def test_an_empty_canvas_and_an_empty_batch_are_possible(llada, qwen):
    retokenize = Retokenizer(llada, qwen)
    nothing = retokenize(np.array([[llada.special.bos]]), np.array([[False]]))
    assert nothing.tokens.shape == nothing.valid.shape == nothing.hidden.shape == (1, 0)
    assert retokenize(np.zeros((0, 5), dtype=int), np.zeros((0, 5), dtype=bool)).tokens.shape == (0, 0)


def test_special_tokens_become_the_targets_own_or_nothing(tokenizer, llada, qwen):
    word, special = llada.encode("x")[0], llada.special
    eot, beyond_the_vocabulary = 3, len(llada) + 50
    tokens = np.array([[special.bos, word, eot, beyond_the_vocabulary, word, special.eos, special.pad]])
    visible = np.zeros_like(tokens, dtype=bool)
    x, end = qwen.encode("x")[0], qwen.special.eos
    assert visible_tokens(Retokenizer(llada, qwen)(tokens, visible)) == [x, x, end, end]
    x, ours = tokenizer.encode("x")[0], tokenizer.special
    assert visible_tokens(Retokenizer(llada, tokenizer)(tokens, visible)) == [ours.bos, x, x, ours.eos, ours.eos]
    small = tokens.astype(np.uint16)  # as corpora store them
    assert visible_tokens(Retokenizer(llada, qwen)(small, visible)) == [qwen.encode("x")[0]] * 2 + [end] * 2


def test_a_visible_mask_is_a_mistake(llada, qwen):
    with pytest.raises(AssertionError, match="a mask token must be hidden"):
        Retokenizer(llada, qwen)(np.array([[llada.special.mask]]), np.array([[False]]))


def test_a_target_that_composes_accents_sees_composed_text(llada):
    raw = byte_level(PRE_TOKENS, WORLD, vocab_size=300, special_tokens=["<|endoftext|>"])._tokenizer
    raw.normalizer = normalizers.NFC()  # as Qwen's
    composing = Tokenizer(raw)
    tokens = np.array([llada.encode(WORLD[1])])
    batch = Retokenizer(llada, composing)(tokens, np.zeros_like(tokens, dtype=bool))
    assert visible_tokens(batch) == composing.encode(WORLD[1])
    assert bytes_of(composing, visible_tokens(batch)) == unicodedata.normalize("NFC", WORLD[1]).encode()


def test_tokenizers_that_do_not_tell_bytes_are_refused(llada):
    words = Raw(models.WordLevel({"<|endoftext|>": 0, "if": 1, "x": 2, ":": 3}, unk_token="<|endoftext|>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="not a byte-level tokenizer"):
        Retokenizer(llada, Tokenizer(words))
    with pytest.raises(ValueError, match="not a byte-level tokenizer"):
        Retokenizer(Tokenizer(words), llada)
    few = byte_level(
        PRE_TOKENS, ["if x:\n\treturn 'é中😀'"], vocab_size=60, special_tokens=["<|endoftext|>"], alphabet=[]
    )
    with pytest.raises(ValueError, match="of the 256 bytes have their own token"):
        Retokenizer(llada, few)


def test_the_registers_of_a_retokenised_text_are_those_of_the_targets_own_tokens(llada, qwen):
    encoder = tiny.encoder(replace(tiny.ENCODER, vocab_size=len(qwen), end_id=qwen.special.eos))
    texts = ["x = 1", WORLD[0]]
    tokens = [llada.encode(text) for text in texts]
    length = max(map(len, tokens))
    canvas = np.array([[llada.special.bos] * (length - len(ids)) + ids for ids in tokens])
    batch = Retokenizer(llada, qwen)(canvas, np.zeros_like(canvas, dtype=bool))
    ids, valid, hidden = map(torch.from_numpy, batch)
    registers = encoder(ids, valid=valid, hidden=hidden)
    for row, text in enumerate(texts):
        torch.testing.assert_close(registers[row], encoder(torch.tensor([qwen.encode(text)]))[0])
