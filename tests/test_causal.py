"""Causal checkpoints as bases: equal to transformers with the causal mask, and without it."""

import json

import pytest
import tiny
import torch
from safetensors.torch import load_file
from tiny_causal import NUM_TOKENS, byte_level_tokenizer, save_causal, save_dream

from crocodil.checkpoints.bases import base_config, load_base
from crocodil.checkpoints.causal import family_of, load_causal
from crocodil.checkpoints.format import load_model, save_model
from crocodil.models.llada import LLaDA
from crocodil.presets import models
from crocodil.text.tokenizer import Tokenizer

KINDS = ("llama", "qwen2", "qwen3")
TOKENS = torch.randint(0, NUM_TOKENS, (2, 12), generator=torch.Generator().manual_seed(1))


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return (ours[..., : theirs.shape[-1]] - theirs).abs().max().item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@torch.no_grad()
def test_a_causal_checkpoint_computes_what_transformers_computes(tmp_path, kind, tied):
    theirs = save_causal(tmp_path, kind, tie_word_embeddings=tied)
    ours = load_causal(tmp_path)
    assert (ours.head is None) == tied
    assert difference(ours(TOKENS, causal=True), theirs(TOKENS).logits) < 1e-4
    assert difference(ours(TOKENS), theirs(TOKENS).logits) > 0.1
    theirs.config.is_causal = False
    assert difference(ours(TOKENS), theirs(TOKENS).logits) < 1e-4


@torch.no_grad()
def test_shards_and_a_folder_of_our_own_hold_the_same_network(tmp_path):
    theirs = save_causal(tmp_path / "shards", "qwen2", num_shards=3)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    ours = load_causal(tmp_path / "shards", dtype=torch.float32)
    assert difference(ours(TOKENS, causal=True), theirs(TOKENS).logits) < 1e-4
    save_model(ours, tmp_path / "ours")
    again = load_model(tmp_path / "ours")
    assert isinstance(again, LLaDA)
    assert again.config == ours.config
    assert torch.equal(again(TOKENS), ours(TOKENS))


@pytest.mark.parametrize("num_rows", [NUM_TOKENS, NUM_TOKENS + 3], ids=["no row is free", "three rows are free"])
def test_the_first_free_id_becomes_the_mask(tmp_path, num_rows):
    theirs = save_causal(tmp_path, num_rows=num_rows, tie_word_embeddings=False)
    ours = load_causal(tmp_path)
    assert ours.config.mask_id == NUM_TOKENS
    assert ours.config.vocab_size == (num_rows if num_rows > NUM_TOKENS else 320)
    stored = theirs.model.embed_tokens.weight
    assert torch.equal(ours.embed.weight[:num_rows], stored)
    if num_rows == NUM_TOKENS:
        assert torch.allclose(ours.embed.weight[NUM_TOKENS], stored.mean(dim=0), atol=1e-6)
        assert torch.allclose(ours.head.weight[NUM_TOKENS], theirs.lm_head.weight.mean(dim=0), atol=1e-6)


def test_the_mask_of_the_tokenizer_is_the_mask_of_the_base(tmp_path):
    save_causal(tmp_path)
    byte_level_tokenizer("other", "<|mask|>").save(str(tmp_path / "tokenizer.json"))
    assert load_causal(tmp_path).config.mask_id == NUM_TOKENS + 1


def test_a_tokenizer_gets_a_mask_token_that_no_text_contains(tmp_path):
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    plain = Tokenizer.load(tmp_path / "tokenizer.json")
    masked = plain.with_mask()
    assert (plain.special.mask, masked.special.mask) == (None, NUM_TOKENS)
    assert masked.with_mask() is masked
    assert masked.encode("a <|mask|>\n") == plain.encode("a <|mask|>\n")


@torch.no_grad()
def test_chosen_layers_are_those_of_the_checkpoint(tmp_path):
    theirs = save_causal(tmp_path, num_layers=4)
    ours = load_causal(tmp_path, layers=[0, 3])
    theirs.model.layers = torch.nn.ModuleList([theirs.model.layers[0], theirs.model.layers[3]])
    for index, layer in enumerate(theirs.model.layers):
        layer.self_attn.layer_idx = index
    assert difference(ours(TOKENS, causal=True), theirs(TOKENS, use_cache=False).logits) < 1e-4
    for wrong in ([], [3, 0], [0, 0], [-1], [4]):
        with pytest.raises(ValueError, match="layers must rise from 0 to 3"):
            load_causal(tmp_path, layers=wrong)


def test_a_family_is_type_shape_and_vocabulary(tmp_path):
    save_causal(tmp_path)
    file = tmp_path / "config.json"
    assert load_causal(tmp_path).config.parents == ("llama-3x32-320",)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"crocodil_parents": ["llama-30x576-49152"]}))
    assert load_causal(tmp_path, layers=[1]).config.parents == ("llama-30x576-49152",)
    assert family_of(
        {"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "vocab_size": 151_936}
    ) == ("qwen2-24x896-151936")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2', but only llama, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', but only 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope type is 'yarn'"),
        ({"vocab_size": 256}, "vocab_size 256|embed_tokens.weight has shape"),
        ({"hidden_size": None}, "width"),
        ({"vocab_size": None}, "has no 'vocab_size'"),
    ],
)
def test_what_is_not_implemented_or_does_not_fit_is_refused(tmp_path, values, message):
    save_causal(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    with pytest.raises(ValueError, match=message):
        load_causal(tmp_path)


# ---------------------------------------------------------------- diffusion bases


@torch.no_grad()
def test_dream_gives_the_logits_of_its_public_implementation(fixtures):
    golden = load_file(fixtures / "dream-tiny" / "golden.safetensors")
    logits = golden["logits"]  # of the network; Dream's sampler shifts them
    expected = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
    assert difference(load_base(fixtures / "dream-tiny")(golden["input_ids"]), expected) < 1e-4


@torch.no_grad()
def test_dream_predicts_each_token_from_the_state_before_it(tmp_path):
    theirs = save_dream(tmp_path)
    ours = load_base(tmp_path)
    assert ours.config == base_config(tmp_path)
    assert (ours.config.mask_id, ours.config.shifted, ours.config.parents) == (300, True, ("qwen2-3x32-320",))
    logits = theirs(TOKENS).logits
    assert difference(ours(TOKENS), torch.cat([logits[:, :1], logits[:, :-1]], dim=1)) < 1e-4
    rows = torch.arange(12).expand(2, -1) % 3 == 1
    assert torch.allclose(ours(TOKENS, rows=rows), ours(TOKENS)[rows], atol=1e-5)


@torch.no_grad()
def test_shifted_states_come_from_the_prefix_at_the_first_token(tmp_path):
    save_dream(tmp_path)
    ours = load_base(tmp_path)
    prefix = tiny.streams(2, "prefix").normal(4, 32)
    rows = torch.zeros(2, 12, dtype=torch.bool)
    rows[:, 0] = True
    changed = prefix.clone()
    changed[:, -1] += 1
    assert not torch.allclose(
        ours(TOKENS, prefix_embeddings=prefix, rows=rows), ours(TOKENS, prefix_embeddings=changed, rows=rows)
    )


def test_illada_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = LLaDA(models.illada_8b())
    count = sum(parameter.numel() for parameter in model.parameters())
    assert f"{count / 1e9:.2f}" == "7.62"
    assert f"{(count - model.embed.weight.numel()) / 1e9:.2f}" == "6.98"


def test_bases_of_all_formats_load_and_a_causal_model_is_refused(tmp_path, fixtures):
    assert load_base(fixtures / "llada-tiny").config == base_config(fixtures / "llada-tiny")
    save_model(tiny.llada(), tmp_path / "ours")
    assert load_base(tmp_path / "ours").config == base_config(tmp_path / "ours") == tiny.BACKBONE
    save_model(tiny.encoder(), tmp_path / "encoder")
    for read in (load_base, base_config):
        with pytest.raises(ValueError, match="holds a RegisterEncoder, not a base"):
            read(tmp_path / "encoder")
    save_causal(tmp_path / "causal", "qwen3")
    with pytest.raises(ValueError, match=r"is a causal language model \(qwen3\), not a base: train one"):
        load_base(tmp_path / "causal")
