"""The paper's set-up: a public LLaDA and a public Qwen, each with its vocabulary, trained in full or with LoRA."""

import json
from dataclasses import replace

import pytest
import tiny as nets
import torch
from safetensors.torch import save_file
from tiny_causal import save_causal

from crocodil.checkpoints.causal import load_causal
from crocodil.checkpoints.format import load_model, save_model
from crocodil.checkpoints.llada import llada_name
from crocodil.corpus.shards import TOKENIZER_FILE
from crocodil.models.demasker import Demasker
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.presets.changes import with_changes
from crocodil.presets.runs import paper, paper_one_gpu, preset
from crocodil.runtime.distributed import Ranks
from crocodil.seeding import generator_for
from crocodil.text.tokenizer import Tokenizer
from crocodil.training.adapting import (
    LoRA,
    add_adapters,
    check_encoder_fits_base,
    init_from_base,
    merge_adapters,
)
from crocodil.training.estimate import estimates
from crocodil.training.loop import LoopConfig, initial_state, take_step
from crocodil.training.run import run_stage
from crocodil.training.run_config import Pretrained
from crocodil.training.stage_setup import guided_stage
from crocodil.training.workspace import Workspace


@pytest.fixture(scope="session")
def folders(corpus, tmp_path_factory):
    """Folders of a LLaDA with the corpus's vocabulary and a Qwen with its own, as downloaded from a hub."""
    root = tmp_path_factory.mktemp("folders")
    vocabulary = corpus.description["tokenizer"]
    special = vocabulary["special"]
    config = replace(
        nets.BACKBONE, vocab_size=vocabulary["vocab_size"], mask_id=special["mask"], eos_id=special["eos"],
        pad_id=special["eos"],
    )  # fmt: skip
    write_llada(root / "llada", config)
    texts = ["x = [1, 2, 3]\n", "for i in range(10):\n\tprint(i)\n"] * 3
    write_qwen(root / "qwen", Tokenizer.train(texts, vocab_size=290))
    return Pretrained(llada=root / "llada", qwen=root / "qwen")


def write_llada(directory, config):
    directory.mkdir()
    weights = {llada_name(name): tensor for name, tensor in nets.llada(config).state_dict().items()}
    save_file(weights, directory / "model.safetensors")
    values = {
        "model_type": "llada", "vocab_size": config.vocab_size, "d_model": config.width,
        "n_layers": config.num_layers, "n_heads": config.num_heads, "n_kv_heads": config.num_kv_heads,
        "mlp_hidden_size": config.mlp_width, "rope_theta": config.rope_theta, "rms_norm_eps": config.norm_eps,
        "max_sequence_length": config.max_length, "mask_token_id": config.mask_id,
        "eos_token_id": config.eos_id, "pad_token_id": config.pad_id,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(values))


def write_qwen(directory, tokenizer):
    directory.mkdir()
    tokenizer.save(directory / TOKENIZER_FILE)
    config = replace(nets.ENCODER, vocab_size=len(tokenizer), end_id=tokenizer.special.eos)
    save_file(dict(nets.encoder(config).backbone.state_dict()), directory / "model.safetensors")
    values = {
        "model_type": "qwen3", "vocab_size": config.vocab_size, "hidden_size": config.width,
        "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_width,
        "intermediate_size": config.mlp_width, "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps, "max_position_embeddings": config.max_length,
        "eos_token_id": config.end_id,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(values))


def short(run, **other):
    """The paper's run with fewer registers, on a CPU, for a few steps."""
    loop = LoopConfig(num_steps=4, batch_size=4, learning_rate=1e-2, average_decay=0.0, evaluate_every=100)
    return replace(
        run, lengths=(64,), guided_loop=loop, base_loop=loop, prior_loop=loop, conditional_loop=loop,
        encoder_warmup_steps=1, prior=replace(run.prior, num_registers=2, width=32, num_layers=1, num_heads=2),
        conditional=replace(run.conditional, num_registers=2, width=32, num_layers=1, num_heads=2), **other,
    )  # fmt: skip


def test_the_stages_of_the_paper_run_on_two_public_checkpoints(corpus, folders, tmp_path):
    run = short(paper(corpus, folders))
    assert run.encoder.vocab_size != run.demasker.backbone.vocab_size
    assert run.demasker.num_registers == 128
    workspace = Workspace(corpus, tmp_path, tmp_path)
    for stage in ("guided", "registers", "prior", "conditional"):
        assert run_stage(stage, run, workspace)
    assert load_model(tmp_path / "guided" / "model" / "encoder").config == run.encoder
    assert workspace.registers(run, "train")[0].bank.shape[1:] == (2, run.encoder.register_width)


def test_only_adapters_are_trained_and_the_saved_model_has_none(corpus, folders, tmp_path):
    run = short(paper_one_gpu(corpus, folders), lora=LoRA(rank=4, alpha=8.0))
    workspace = Workspace(corpus, tmp_path, tmp_path)
    stage, loop = guided_stage(run, workspace)
    state = initial_state(stage, loop)
    assert not [name for name in state.parameters if "base_layer" in name]
    before = {name: tensor.clone() for name, tensor in stage.demasker.state_dict().items()}
    for _ in range(3):
        take_step(stage, state, loop)
    after = stage.demasker.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name for name in moved if name.startswith("backbone")} == {name for name in after if "lora_" in name}
    assert "register_map.weight" in moved
    assert run_stage("guided", run, Workspace(corpus, tmp_path / "run", tmp_path / "run"))
    saved = load_model(tmp_path / "run" / "guided" / "model" / "demasker")
    assert isinstance(saved, Demasker)
    assert not [name for name in saved.state_dict() if "lora" in name]


def test_merged_adapters_give_the_same_output():
    demasker, lora = nets.demasker(), LoRA(rank=3, alpha=6.0)
    plain = {name: tensor.clone() for name, tensor in demasker.state_dict().items()}
    tokens, bank = nets.programs(2, 8), nets.bank(2)
    untouched = demasker(tokens, bank)
    add_adapters(demasker.backbone, lora, generator_for("adapters"))
    assert torch.equal(demasker(tokens, bank), untouched)
    with torch.no_grad():
        for name, parameter in demasker.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=generator_for(name))
    adapted = demasker(tokens, bank)
    assert not torch.allclose(adapted, untouched, atol=1e-2)
    whole = nets.demasker()
    whole.load_state_dict(merge_adapters(demasker.state_dict(), lora))
    assert set(whole.state_dict()) == set(plain)
    assert torch.allclose(whole(tokens, bank), adapted, atol=1e-4)


def test_an_encoder_can_be_initialised_from_the_first_blocks_of_a_base():
    config = encoder_like(nets.BACKBONE, num_layers=1)
    base, tokens = nets.llada(), nets.programs(2, 9)
    encoder = init_from_base(nets.encoder(config), base, generator_for("registers"))
    layer, block = encoder.backbone.layers[0], base.blocks[0]
    states, positions = base.embed(tokens), torch.arange(9)[None]
    angles = base.angles(positions)
    expected = block(states, (angles.cos()[:, None], angles.sin()[:, None]), None)
    output = layer(encoder.backbone.embed_tokens(tokens), encoder.backbone.rotary_emb(states, positions))
    assert torch.allclose(output, expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"encoder\.width is 16, but the base has 32"):
        init_from_base(nets.encoder(), base, generator_for("registers"))


def encoder_like(base, *, num_layers, **fields):
    """An encoder whose blocks are those of a base."""
    return replace(
        nets.ENCODER, vocab_size=base.vocab_size, width=base.width, num_heads=base.num_heads,
        num_kv_heads=base.num_kv_heads, head_width=base.head_width, mlp_width=base.mlp_width,
        num_layers=num_layers, rope_theta=base.rope_theta, norm_eps=base.norm_eps, causal=False,
        qkv_bias=base.qkv_bias, without_qk_norm=not base.qk_norm, **fields,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_the_first_layers_of_a_causal_model_are_an_encoder_that_computes_the_same(kind, tmp_path):
    causal = save_causal(tmp_path, kind)
    base, tokens = load_causal(tmp_path), torch.arange(20).view(2, 10)
    encoder = RegisterEncoder(replace(encoder_like(base.config, num_layers=3, end_id=256), causal=True))
    init_from_base(encoder.init_weights(generator_for("encoder")), base, generator_for("registers"))
    with torch.no_grad():
        expected = causal(tokens, output_hidden_states=True).hidden_states[2]
        states = encoder.backbone.embed_tokens(tokens)
        rotation = encoder.backbone.rotary_emb(states, torch.arange(10)[None])
        for layer in encoder.backbone.layers[:2]:
            states = layer(states, rotation)
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-4)
    if kind == "qwen2":
        with pytest.raises(ValueError, match=r"encoder\.qkv_bias is False, but the base has True"):
            check_encoder_fits_base(replace(encoder.config, qkv_bias=False), base.config)
    if kind == "qwen3":
        with pytest.raises(ValueError, match="the base has norms of queries and keys"):
            check_encoder_fits_base(replace(encoder.config, without_qk_norm=True), base.config)
    save_model(encoder, tmp_path / "encoder")
    assert load_model(tmp_path / "encoder").config == encoder.config


def test_lora_is_for_one_process(corpus, folders, tmp_path):
    workspace = Workspace(corpus, tmp_path, tmp_path, Ranks(0, 2))
    with pytest.raises(ValueError, match="LoRA runs in one process"):
        run_stage("guided", short(paper_one_gpu(corpus, folders)), workspace)


def test_the_papers_numbers_are_in_its_preset(corpus):
    run = paper(corpus, Pretrained())
    loop = run.guided_loop
    assert (loop.learning_rate, loop.weight_decay, loop.batch_size) == (2.5e-5, 0.1, 512)
    assert loop.num_steps == -(-3 * len(corpus.programs("train", length=4096)) // 512)
    assert run.encoder_warmup_steps == 4000
    assert run.prior.num_layers == 28
    whole, adapted = (
        {one.stage: one for one in estimates(build(corpus, Pretrained()))}["guided"]
        for build in (paper, paper_one_gpu)
    )
    assert whole.trained > 8.5e9
    assert adapted.trained < 1e9
    assert adapted.frozen == 8_015_581_184
    assert adapted.gigabytes < 80
    assert estimates(paper(corpus, Pretrained()), num_devices=8)[1].gigabytes < 80


def test_a_preset_from_scratch_takes_no_checkpoints(corpus, folders):
    with pytest.raises(ValueError, match="preset tiny trains from scratch"):
        preset("tiny", corpus, folders)
    with pytest.raises(ValueError, match="no preset 'none'"):
        preset("none", corpus, Pretrained())


def test_single_fields_of_a_run_are_set_by_name(corpus):
    run = preset("tiny", corpus, Pretrained())
    other = with_changes(
        run, ["guided_objective.register_cosine=1", "base_loop.bf16=true", "prior_loop.num_steps=7"]
    )
    assert other.guided_objective.register_cosine == 1
    assert other.base_loop.bf16 is True
    assert other.prior_loop.num_steps == 7
    assert (
        replace(other, guided_objective=run.guided_objective, base_loop=run.base_loop, prior_loop=run.prior_loop)
        == run
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "guided_loop.batchsize=3",
            "no field 'guided_loop.batchsize': instead of 'batchsize' there are num_steps, batch_size",
        ),
        ("nonsense=3", "no field 'nonsense'"),
        ("lengths.more=3", "instead of 'more' there are no fields"),
        ("lengths=long", "Run: lengths should be a valid tuple, not 'long'"),
        ("guided_loop.bf16=1", "LoopConfig: bf16 should be a valid boolean, not 1"),
        ("guided_loop=3", "guided_loop is a group of fields"),
        ("lengths", "a change must be NAME=VALUE, not 'lengths'"),
    ],
)
def test_an_unknown_field_or_value_is_one_clear_line(corpus, change, message):
    with pytest.raises(ValueError, match=message):
        with_changes(preset("tiny", corpus, Pretrained()), [change])
