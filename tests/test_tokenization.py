import json
from pathlib import Path

import pytest

import crocodil
from crocodil.tokenization import Tokenizer

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
    from tokenizers import Tokenizer as Raw
    from tokenizers import models

    raw = Raw(models.BPE())
    raw.add_special_tokens(names)
    raw.save(str(tmp_path / "tokenizer.json"))
    special = Tokenizer.load(tmp_path / "tokenizer.json").special
    assert (special.mask, special.bos, special.eos, special.pad) == expected


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is missing"):
        Tokenizer.load(tmp_path / "nowhere.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is no tokenizer\.json that can be used"):
        Tokenizer.load(tmp_path / "bad.json")
    with pytest.raises(ValueError, match="at least 260 tokens"):
        Tokenizer.train(SOURCES, vocab_size=100)
