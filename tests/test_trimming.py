"""Trimmed vocabularies: exact texts, the old tokens where they are kept, checkpoints with the same logits."""

import json
import shutil

import pytest
import torch
from test_tokenization import BYTES, SOURCES, TRICKY, WORLD, byte_level
from tiny_causal import save_causal
from tokenizers import Tokenizer as Raw
from tokenizers import models, normalizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from crocodil.checkpoints.causal import load_causal
from crocodil.checkpoints.trimmed import trimmed_rows
from crocodil.cli import app
from crocodil.text.tokenizer import SPECIAL_TOKENS, Tokenizer
from crocodil.text.trimming import count_tokens, trim

SOURCES = SOURCES[:24]
USED = SOURCES[:8]
RARE = {*map(chr, range(0xF5, 0x100)), *map(chr, range(0x101, 0x109))}  # letters of control bytes, and not UTF-8


@pytest.fixture(scope="module")
def smollm():
    """As SmolLM2's: digits apart, no mask, no tokens for some bytes, which become the unknown token."""
    return byte_level(
        r" ?\p{L}+|\d| ?[^\s\p{L}\d]+|\s+(?!\S)|\s+",
        SOURCES,
        vocab_size=700,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        alphabet=[letter for letter in BYTES if letter not in RARE],
    )


@pytest.fixture(scope="module")
def qwen():
    """As Qwen2.5's: other words, all bytes, text that was added as one token."""
    return byte_level(
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        SOURCES,
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        added=["<tool_call>"],
    )


@pytest.fixture(scope="module", params=["smollm", "qwen"])
def parent(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def trimmed(parent):
    return trim(parent, count_tokens(parent, USED), size=400)


def definition(tokenizer):
    return json.loads(tokenizer.to_json())


def test_any_text_comes_back_exactly(trimmed):
    for text in [*TRICKY, *WORLD, *SOURCES[:20]]:
        assert trimmed.tokenizer.decode(trimmed.tokenizer.encode(text)) == text


def test_ids_begin_with_the_special_tokens_and_all_bytes(trimmed):
    special = trimmed.tokenizer.special
    assert (special.mask, special.bos, special.eos, special.pad) == (0, 1, 2, 3)
    assert sorted(trimmed.tokenizer.token_bytes[4:260]) == [bytes([byte]) for byte in range(256)]
    assert len(trimmed.tokenizer) == len(trimmed.old_ids) == 448  # 400, as a multiple of 64


def test_every_new_token_is_the_old_one_of_the_same_bytes(parent, trimmed):
    for new, old in enumerate(trimmed.old_ids[4:], start=4):
        if old is not None:
            assert trimmed.tokenizer.token_bytes[new] == parent.token_bytes[old]
    new_tokens = [trimmed.tokenizer.token_bytes[i] for i, old in enumerate(trimmed.old_ids) if old is None]
    assert new_tokens[:2] == [None, None]  # mask and padding
    assert set(new_tokens[2:]) == {bytes([byte]) for byte in range(256)} - set(parent.token_bytes)
    assert trimmed.old_ids[1] == trimmed.old_ids[2] == parent.special.eos


def test_a_word_whose_old_tokens_are_all_kept_has_the_old_tokens(parent, trimmed):
    new_of = {old: new for new, old in enumerate(trimmed.old_ids) if old is not None and new >= 4}
    words = sorted({word for text in SOURCES for word in text.split(" ")})
    old_tokens = parent.encode_all(words)
    kept = [ids for ids in old_tokens if new_of.keys() >= set(ids)]
    kept_words = [word for word, ids in zip(words, old_tokens, strict=True) if new_of.keys() >= set(ids)]
    assert trimmed.tokenizer.encode_all(kept_words) == [[new_of[i] for i in ids] for ids in kept]
    assert 0.1 < len(kept) / len(words) < 0.9  # of both kinds there are many


def test_all_used_tokens_may_be_kept_and_then_texts_have_the_old_tokens(parent):
    counts = count_tokens(parent, USED)
    tokenizer, old_ids = trim(parent, counts)
    assert set(counts) <= set(old_ids)
    assert len(old_ids) % 64 == 0
    assert [[old_ids[i] for i in tokenizer.encode(text)] for text in USED] == parent.encode_all(USED)


def test_every_kept_token_is_made_by_merges_of_kept_tokens(trimmed):
    model = definition(trimmed.tokenizer)["model"]
    made = {left + right for left, right in model["merges"]}
    assert set(model["vocab"]) == {*SPECIAL_TOKENS, *BYTES, *made}
    assert {part for merge in model["merges"] for part in merge} <= set(model["vocab"])


def test_a_token_that_several_merges_make_keeps_the_merges_that_text_takes():
    pairs = [(a, b) for a in "0123456789" for b in "0123456789"][:57]
    merges = [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc"), ("x", "abc"), *pairs]
    tokens = ["<|endoftext|>", *BYTES, *dict.fromkeys(left + right for left, right in merges), "xa"]
    old = {token: i for i, token in enumerate(tokens)}
    plain = definition(byte_level(r".+", ["a"], vocab_size=257, special_tokens=["<|endoftext|>"]))
    plain["model"] |= {"vocab": old, "merges": merges}
    counts = {old["xa"]: 9, old["xabc"]: 1} | {old[left + right]: 5 for left, right in pairs}
    tokenizer, old_ids = trim(Tokenizer(Raw.from_str(json.dumps(plain))), counts, size=320)
    assert [old_ids[i] for i in tokenizer.encode("xabc")] == [old["xabc"]]
    assert {old["bc"], old["abc"]} <= set(old_ids)
    assert not {old["ab"], old["xa"]} & set(old_ids)  # not on the way, and made by no merges


def test_the_most_used_tokens_are_kept_and_ties_go_by_id(parent):
    counts = count_tokens(parent, USED)
    first, again = (trim(parent, dict(order), size=320) for order in (counts.items(), reversed(counts.items())))
    assert first.old_ids == again.old_ids
    assert first.tokenizer.to_json() == again.tokenizer.to_json()


def test_a_normaliser_is_dropped_so_that_accents_stay_as_they_are(qwen):
    raw = Raw.from_str(qwen.to_json())
    raw.normalizer = normalizers.NFC()
    tokenizer, _ = trim(Tokenizer(raw), count_tokens(qwen, USED), size=400)
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "e\u0301"


def test_what_cannot_be_trimmed_is_refused_in_one_line(qwen):
    with pytest.raises(ValueError, match="needs 260 tokens for all bytes, not 100"):
        trim(qwen, {}, size=100)
    words = Raw(models.WordLevel({"<|endoftext|>": 0}, unk_token="<|endoftext|>"))
    with pytest.raises(ValueError, match="only a byte-level BPE tokenizer can be trimmed, not WordLevel"):
        trim(Tokenizer(words), {})
    with pytest.raises(ValueError, match="has a token 7, but the embedding only 5 rows"):
        trimmed_rows(torch.zeros(5, 2), [None, 7])


# ---------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def folders(request, smollm, tmp_path_factory):
    """A causal checkpoint and what `crocodil trim` makes of it: tied, or in shards with a head of its own."""
    root, is_tied = tmp_path_factory.mktemp("trim"), request.param == "llama"
    save_causal(
        root / "old", request.param, num_rows=704, tie_word_embeddings=is_tied, num_shards=1 if is_tied else 3
    )
    smollm.save(root / "old" / "tokenizer.json")
    (root / "texts").mkdir()
    for number, text in enumerate(USED):
        (root / "texts" / f"{number}.py").write_text(text)
    arguments = ["trim", root / "old", "--data", root / "texts", "--out", root / "new", "--size", 400]
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert "448 of 700 tokens" in result.output
    return root


def test_transformers_loads_the_trimmed_model_and_its_logits_are_the_old_ones(folders, smollm):
    old, new = (AutoModelForCausalLM.from_pretrained(folders / name) for name in ("old", "new"))
    tokenizer, old_ids = trim(smollm, count_tokens(smollm, USED), size=400)
    assert Tokenizer.load(folders / "new" / "tokenizer.json").to_json() == tokenizer.to_json()
    ids = torch.tensor([[1, *range(260, 300)]])
    rows = [new_id for new_id, old_id in enumerate(old_ids) if old_id is not None]
    translated = torch.tensor([[old_ids[i] for i in ids[0].tolist()]])
    expected = old(translated).logits[..., [old_ids[i] for i in rows]]
    assert torch.equal(new(ids).logits[..., rows], expected)
    mean = old.get_input_embeddings().weight.mean(dim=0)
    torch.testing.assert_close(new.get_input_embeddings().weight[0], mean)


def test_the_config_names_the_special_tokens_and_the_parent(folders):
    config = json.loads((folders / "new" / "config.json").read_text())
    base = load_causal(folders / "new")
    assert base.config.parents == load_causal(folders / "old").config.parents
    assert (base.config.mask_id, base.config.eos_id, base.config.pad_id) == (0, 2, 3)
    assert [config[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [1, 2, 3]
    assert config["vocab_size"] == 448
    assert AutoTokenizer.from_pretrained(folders / "new").mask_token_id == 0


def test_a_folder_that_exists_and_a_model_without_weights_are_refused(folders, tmp_path):
    def failure(model, out):
        arguments = ["trim", str(model), "--data", str(folders / "texts"), "--out", str(out)]
        return str(CliRunner().invoke(app, arguments).exception)

    assert "exists: choose a new folder" in failure(folders / "old", folders / "new")
    assert "tokenizer.json is missing" in failure(tmp_path, tmp_path / "out")
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(folders / "old" / name, tmp_path)
    assert "has neither model.safetensors" in failure(tmp_path, tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "llada"}')
    assert "model_type is 'llada'; llama, qwen2, qwen3 can be trimmed" in failure(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_texts_of_a_corpus_are_its_documents(corpus):
    from crocodil.cli.trim import texts_of

    texts = list(texts_of(corpus.directory))
    assert len(texts) == corpus.description["splits"]["train"]["documents"]
    assert sum(map(len, texts)) == corpus.description["splits"]["train"]["chars"]
    from crocodil.corpus.summary import random_texts

    assert list(random_texts(corpus, max_chars=1)) == texts[:1]
