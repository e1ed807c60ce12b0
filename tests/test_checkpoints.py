import json
import shutil
from dataclasses import replace

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model

from crocodil.checkpoints.checksums import write_checksums
from crocodil.checkpoints.format import load_model, save_model
from crocodil.checkpoints.llada import llada_config, llada_name, load_llada
from crocodil.checkpoints.quantised import _best_scale, from_few_bits, from_int8, to_few_bits, to_int8
from crocodil.checkpoints.qwen3 import load_qwen3_embedding
from crocodil.checkpoints.tensors import write_tensors
from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.processes.registers import normalise
from crocodil.seeding import generator_for

# ---------------------------------------------------------------- LLaDA's format


@pytest.fixture
def checkpoint(fixtures, tmp_path):
    """A copy of a LLaDA checkpoint to damage."""
    return shutil.copytree(fixtures / "llada-tiny", tmp_path / "checkpoint")


def assert_refused_in_one_line(folder, change, message):
    """After this change of its weights, with new checksums, a model does not load."""
    rewrite(folder / WEIGHTS, change)
    write_checksums(folder)
    with pytest.raises(ValueError, match=message) as raised:
        load_model(folder)
    assert "\n" not in str(raised.value)


def rewrite(file, change):
    weights = load_file(file)
    change(weights)
    save_file(weights, file)


def reconfigure(directory, **values):
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def shard(directory, num_shards):
    """Split model.safetensors into shards with an index, as large checkpoints come."""
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {}
    for number in range(num_shards):
        names = sorted(weights)[number::num_shards]
        file_name = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        save_file({name: weights[name] for name in names}, directory / file_name)
        weight_map |= dict.fromkeys(names, file_name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_llada_8b_shaped_index_of_six_shards_loads(fixtures, tmp_path):
    values = json.loads((fixtures / "llada-8b-config.json").read_text())
    values |= {"d_model": 8, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 12, "vocab_size": 20}
    values |= {"embedding_size": 20, "mask_token_id": 19, "eos_token_id": 18, "pad_token_id": 18}
    (tmp_path / "config.json").write_text(json.dumps(values))
    original = LLaDA(llada_config(values)).init_weights(generator_for("8b"))
    stored = {llada_name(name): tensor for name, tensor in original.state_dict().items()}
    save_file(stored, tmp_path / "model.safetensors")
    shard(tmp_path, 6)
    assert len(list(tmp_path.glob("model-*.safetensors"))) == 6
    loaded = load_llada(tmp_path).state_dict()
    assert len(loaded) == 291
    assert all(torch.equal(loaded[name], tensor) for name, tensor in original.state_dict().items())


def test_the_head_and_the_down_projections_do_not_share_a_place():
    assert llada_name("head.weight") == "model.transformer.ff_out.weight"
    assert llada_name("blocks.7.down.weight") == "model.transformer.blocks.7.ff_out.weight"
    assert llada_name("blocks.7.gate.weight") == "model.transformer.blocks.7.ff_proj.weight"


def test_weights_can_be_cast_while_they_are_read(checkpoint):
    assert {p.dtype for p in load_llada(checkpoint).parameters()} == {torch.float32}
    assert {p.dtype for p in load_llada(checkpoint, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_a_tied_checkpoint_has_no_head(checkpoint):
    reconfigure(checkpoint, weight_tying=True)
    with pytest.raises(ValueError, match=r"this model does not have: model\.transformer\.ff_out\.weight"):
        load_llada(checkpoint)
    rewrite(checkpoint / "model.safetensors", lambda w: w.pop("model.transformer.ff_out.weight"))
    model = load_llada(checkpoint)
    assert torch.equal(model.logits(torch.eye(64)).T, model.embed.weight)


def test_a_missing_tensor_is_named(checkpoint):
    rewrite(checkpoint / "model.safetensors", lambda w: w.pop("model.transformer.blocks.1.up_proj.weight"))
    with pytest.raises(ValueError, match=r"lacks model\.transformer\.blocks\.1\.up_proj\.weight"):
        load_llada(checkpoint)


def test_an_unexpected_tensor_is_named(checkpoint):
    rewrite(checkpoint / "model.safetensors", lambda w: w.update(extra=torch.zeros(2)))
    with pytest.raises(ValueError, match="this model does not have: extra"):
        load_llada(checkpoint)


def test_a_wrong_shape_is_named(checkpoint):
    name = "model.transformer.wte.weight"
    rewrite(checkpoint / "model.safetensors", lambda w: w.update({name: torch.zeros(384, 63)}))
    with pytest.raises(
        ValueError, match=r"wte\.weight has shape \(384, 63\), but the config requires \(384, 64\)"
    ):
        load_llada(checkpoint)


@pytest.mark.parametrize("kept", [0, 4, 1000, 400_000])
def test_a_truncated_file_is_named(checkpoint, kept):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or cut short"):
        load_llada(checkpoint)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_a_pickle_is_never_opened(checkpoint, name):
    (checkpoint / "model.safetensors").rename(checkpoint / name)
    with pytest.raises(ValueError, match=f"{name} is a pickle"):
        load_llada(checkpoint)


def test_a_missing_shard_a_lying_index_and_a_path_outside_are_refused(checkpoint):
    shard(checkpoint, 3)
    index = checkpoint / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    name, file_name = next(iter(weight_map.items()))

    index.write_text(json.dumps({"weight_map": {**weight_map, name: "../elsewhere.safetensors"}}))
    with pytest.raises(ValueError, match="not a file beside the index"):
        load_llada(checkpoint)
    index.write_text(json.dumps({"weight_map": {**weight_map, "ghost": file_name}}))
    with pytest.raises(ValueError, match="disagree about ghost"):
        load_llada(checkpoint)
    index.write_text(json.dumps({"metadata": {}}))
    with pytest.raises(ValueError, match="has no weight_map"):
        load_llada(checkpoint)
    index.write_text(json.dumps({"weight_map": weight_map}))
    (checkpoint / file_name).unlink()
    with pytest.raises(ValueError, match=f"{file_name} is missing"):
        load_llada(checkpoint)


def test_an_empty_or_absent_directory_is_refused(tmp_path, checkpoint):
    with pytest.raises(ValueError, match=r"nowhere/config\.json is missing"):
        load_llada(tmp_path / "nowhere")
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        load_llada(checkpoint)
    (checkpoint / "config.json").write_text("{not json")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        load_llada(checkpoint)
    (checkpoint / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="does not hold a JSON object"):
        load_llada(checkpoint)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"activation_type": "swiglu"}, "activation_type is 'swiglu', but only 'silu' is implemented"),
        ({"block_group_size": 2}, "block_group_size is 2, but only 1 is implemented"),
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"include_bias": True}, "include_bias is True"),
        ({"mask_token_id": 384}, "mask_id 384 is outside a vocabulary of 384"),
    ],
)
def test_what_is_not_implemented_is_refused_not_ignored(checkpoint, values, message):
    reconfigure(checkpoint, **values)
    with pytest.raises(ValueError, match=message):
        load_llada(checkpoint)


def test_a_config_without_a_needed_value_says_which(checkpoint):
    values = json.loads((checkpoint / "config.json").read_text())
    del values["d_model"]
    (checkpoint / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"config\.json has no 'd_model'"):
        load_llada(checkpoint)


# ---------------------------------------------------------------- Qwen3-Embedding


def save_qwen(directory, kind=Qwen3Model, **choices):
    config = Qwen3Config(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, intermediate_size=24, eos_token_id=49, max_position_embeddings=64, **choices,
    )  # fmt: skip
    model = kind(config)
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("kind", [Qwen3Model, Qwen3ForCausalLM])
def test_hidden_states_are_those_of_transformers(tmp_path, kind):
    qwen = save_qwen(tmp_path, kind)
    encoder = load_qwen3_embedding(tmp_path, num_registers=4, generator=generator_for("registers"))
    tokens = torch.randint(0, 49, (3, 12), generator=generator_for("tokens"))
    ended = torch.cat([tokens, torch.full((3, 1), 49)], dim=1)
    theirs = getattr(qwen, "model", qwen)(input_ids=ended).last_hidden_state
    ours = encoder.backbone(encoder.backbone.embed_tokens(ended), torch.arange(13).expand(3, -1), None)
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert torch.allclose(encoder(tokens)[:, :1], normalise(theirs[:, -1:]), atol=1e-5)
    assert encoder.suffix.shape == (3, 16)
    assert encoder.suffix.std() > 0


def test_a_loaded_encoder_can_have_registers_of_another_width_and_dtype(tmp_path):
    save_qwen(tmp_path)
    encoder = load_qwen3_embedding(
        tmp_path, num_registers=4, register_width=10, generator=generator_for("r"), dtype=torch.float64
    )
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float64}
    assert encoder(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 4, 10)


def test_a_damaged_qwen_folder_is_refused(tmp_path):
    save_qwen(tmp_path)
    rewrite(tmp_path / "model.safetensors", lambda w: w.pop("layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"lacks layers\.1\.mlp\.up_proj\.weight"):
        load_qwen3_embedding(tmp_path, num_registers=4, generator=generator_for("r"))
    reconfigure(tmp_path, model_type="llama")
    with pytest.raises(ValueError, match="model_type is 'llama', but only 'qwen3'"):
        load_qwen3_embedding(tmp_path, num_registers=4, generator=generator_for("r"))
    for rope in (
        {"rope_parameters": {"rope_type": "yarn"}},
        {"rope_parameters": None, "rope_scaling": {"type": "yarn"}},
    ):
        reconfigure(tmp_path, model_type="qwen3", **rope)
        with pytest.raises(ValueError, match="rope type is 'yarn'"):
            load_qwen3_embedding(tmp_path, num_registers=4, generator=generator_for("r"))


# ---------------------------------------------------------------- our own format

BUILDERS = {
    "llada": tiny.llada,
    "tied llada": lambda: tiny.llada(replace(tiny.BACKBONE, tied_head=True)),
    "demasker": tiny.demasker,
    "encoder": tiny.encoder,
    "encoder with a map": lambda: tiny.encoder(replace(tiny.ENCODER, register_width=24)),
    "prior": tiny.denoiser,
    "conditional prior": lambda: tiny.denoiser(tiny.CONDITIONAL),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_saved_model_comes_back_bit_for_bit(tmp_path, name):
    model = BUILDERS[name]()
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    weights = loaded.state_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[key], tensor) for key, tensor in model.state_dict().items())
    assert {file.name for file in (tmp_path / "model").iterdir()} == {
        "checksums.json",
        "config.json",
        "model.safetensors",
    }
    assert all(file.stat().st_mode & 0o044 for file in (tmp_path / "model").iterdir())  # not only the owner's


def test_a_loaded_encoder_and_demasker_compute_as_before(tmp_path):
    encoder, demasker, tokens = tiny.encoder(), tiny.demasker(), tiny.programs(2, 8)
    save_model(encoder, tmp_path / "encoder")
    save_model(demasker, tmp_path / "demasker")
    registers = encoder(tokens)
    assert torch.equal(load_model(tmp_path / "encoder")(tokens), registers)
    assert torch.equal(load_model(tmp_path / "demasker")(tokens, registers), demasker(tokens, registers))


def test_a_model_is_never_overwritten(tmp_path):
    save_model(tiny.llada(), tmp_path / "model")
    with pytest.raises(ValueError, match="exists: models are never overwritten"):
        save_model(tiny.llada(), tmp_path / "model")


def test_a_save_that_fails_leaves_nothing_behind(tmp_path):
    model = tiny.llada()
    model.head.weight = model.embed.weight  # safetensors refuse shared memory
    with pytest.raises(RuntimeError):
        save_model(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "other"}, "not in this project's format"),
        ({"format_version": 99}, "format version 99; this crocodil reads 1 to 7"),
        ({"kind": "Sampler"}, "unknown kind of model 'Sampler'"),
        ({"config": {"width": 3}}, "fields of LLaDAConfig differ"),
        ({"config": None}, "expected the fields of LLaDAConfig"),
    ],
)
def test_a_foreign_or_newer_description_is_refused(tmp_path, values, message):
    save_model(tiny.llada(), tmp_path / "model")
    reconfigure(tmp_path / "model", **values)
    write_checksums(tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path / "model")


def test_the_config_on_disk_names_every_field(tmp_path):
    save_model(tiny.llada(), tmp_path / "model")
    description = json.loads((tmp_path / "model" / "config.json").read_text())
    assert set(description["config"]) == set(LLaDAConfig.__dataclass_fields__)


# ---------------------------------------------------------------- int8

WEIGHTS = "model.safetensors"
MATRIX = "blocks.1.up.weight"


@pytest.fixture
def rounded(tmp_path):
    """A model with its matrices in int8, to damage."""
    save_model(tiny.llada(), tmp_path / "rounded", bits=8)
    return tmp_path / "rounded"


@pytest.mark.parametrize("name", BUILDERS)
def test_int8_moves_matrices_by_half_a_step_at_most_and_nothing_else(tmp_path, name):
    model = BUILDERS[name]()
    save_model(model, tmp_path / "model", bits=8)
    loaded = load_model(tmp_path / "model").state_dict()
    for key, tensor in model.state_dict().items():
        step = tensor.abs().amax(dim=-1, keepdim=True) / 127 if tensor.ndim == 2 else torch.zeros(())
        assert loaded[key].dtype == torch.float32
        assert ((loaded[key] - tensor).abs() <= step * 0.501).all()


def test_what_was_rounded_once_stays_as_it_is(rounded, tmp_path):
    model = load_model(rounded)
    save_model(model, tmp_path / "plain")
    save_model(model, tmp_path / "again", bits=8)
    for other in ("plain", "again"):
        again = load_model(tmp_path / other).state_dict()
        assert all(torch.allclose(again[key], tensor, rtol=1e-6) for key, tensor in model.state_dict().items())


def test_a_rounded_model_loads_in_any_precision(rounded):
    exact = load_model(rounded).state_dict()
    for dtype in (torch.bfloat16, torch.float64):
        found = load_model(rounded, dtype=dtype).state_dict()
        assert all(torch.equal(found[key], tensor.to(dtype)) for key, tensor in exact.items())


def test_logits_and_registers_change_little_by_int8(tmp_path):
    encoder, demasker, tokens = tiny.encoder(), tiny.demasker(), tiny.programs(2, 8)
    save_model(encoder, tmp_path / "encoder", bits=8)
    save_model(demasker, tmp_path / "demasker", bits=8)
    registers = encoder(tokens)
    assert torch.nn.functional.cosine_similarity(load_model(tmp_path / "encoder")(tokens), registers).min() > 0.999
    logits, found = (model(tokens, registers) for model in (demasker, load_model(tmp_path / "demasker")))
    assert (found - logits).std() < 0.02 * logits.std()


def test_int8_takes_a_quarter_of_the_size(tmp_path):
    model = tiny.llada(replace(tiny.BACKBONE, width=256, mlp_width=512))
    save_model(model, tmp_path / "whole")
    save_model(model, tmp_path / "rounded", bits=8)
    sizes = [(tmp_path / name / WEIGHTS).stat().st_size for name in ("rounded", "whole")]
    assert 0.25 < sizes[0] / sizes[1] < 0.27


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(f"{MATRIX}.scale"), rf"lacks {MATRIX}\.scale, which the int8 matrix {MATRIX} needs"),
        (
            lambda w: w.update({MATRIX: w[MATRIX].float()}),
            f"{MATRIX} has a scale, but is neither an int8 nor a packed matrix",
        ),
        (
            lambda w: w.update({f"{MATRIX}.scale": torch.ones(48, 1)}),
            r"scale has shape \(48, 1\), but the config requires \(48,\)",
        ),
        (lambda w: w[f"{MATRIX}.scale"][3].fill_(torch.nan), rf"{MATRIX}\.scale is damaged"),
        (lambda w: w[f"{MATRIX}.scale"][3].neg_(), rf"{MATRIX}\.scale is damaged"),
        (lambda w: w.update({"ghost.scale": torch.ones(3)}), r"this model does not have: ghost\.scale"),
        (lambda w: w.update({MATRIX: w[MATRIX][1:]}), rf"{MATRIX} has shape \(47, 32\)"),
        (lambda w: w.update({"norm.weight": torch.ones(32, dtype=torch.int8)}), r"lacks norm\.weight\.scale"),
        (
            lambda w: w.update(
                {"norm.weight": torch.ones(32, dtype=torch.int8), "norm.weight.scale": torch.ones(32)}
            ),
            r"norm\.weight is int8, but not a matrix",
        ),
    ],
)
def test_an_extra_missing_or_damaged_scale_is_an_error_of_one_line(rounded, change, message):
    assert_refused_in_one_line(rounded, change, message)


def test_zero_rows_stay_zero_and_non_finite_values_are_refused():
    steps, scale = to_int8(torch.tensor([[0.0, 0.0], [1.0, -2.0]]))
    assert torch.equal(from_int8(steps, scale)[0], torch.zeros(2))
    assert steps[1].tolist() == [64, -127]
    with pytest.raises(ValueError, match="NaN or infinite values cannot be stored as int8"):
        to_int8(torch.tensor([[1.0, torch.inf]]))


# ---------------------------------------------------------------- four to six bits


@pytest.fixture
def in_int4(tmp_path):
    """A model with the matrices of its blocks in int4, to damage."""
    save_model(tiny.llada(), tmp_path / "int4", bits=4)
    return tmp_path / "int4"


@pytest.fixture(scope="module")
def matrix():
    return torch.randn(16, 128, generator=generator_for("matrix"))


@pytest.mark.parametrize(("bits", "group"), [(3, 32), (4, 32), (4, 64), (5, 32), (6, 32)])
def test_few_bits_take_the_nearest_point_of_the_grid_of_each_group(matrix, bits, group):
    packed, scale = to_few_bits(matrix, bits, group)
    assert (packed.shape, scale.shape) == ((16, 16 * bits), (16, 128 // group))
    step = scale.float().repeat_interleave(group, dim=1)
    grid = torch.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)) * step[..., None]
    nearest = (grid - matrix[..., None]).abs().amin(dim=-1)
    error = (from_few_bits(packed, scale, bits) - matrix).abs()
    assert torch.allclose(error, nearest, atol=1e-6)
    inside = (matrix >= grid.amin(dim=-1)) & (matrix <= grid.amax(dim=-1))
    assert inside.float().mean() > 0.9
    assert (error <= step.abs() * 0.501)[inside].all()


def test_clipping_the_range_of_int4_lowers_its_error(matrix, monkeypatch):
    clipped = (from_few_bits(*to_few_bits(matrix)) - matrix).square().mean()
    monkeypatch.setattr("crocodil.checkpoints.quantised.CLIPS", (1.0,))
    assert clipped < 0.97 * (from_few_bits(*to_few_bits(matrix)) - matrix).square().mean()


@pytest.mark.parametrize("bits", [3, 4, 5, 6])
def test_every_number_of_a_few_bits_comes_back_exactly(bits):
    end = 2 ** (bits - 1)
    steps = torch.arange(-end, end).repeat(2, 2).float()
    for scale in (0.25, -0.25):
        values = steps * scale
        packed, scales = to_few_bits(values, bits, group=2 * end)
        assert packed[0, :2].tolist() == ([0xAA, 0xAA] if bits == 3 else [0x10, 0x32])
        assert packed.shape[1] == 4 * end * bits // 8
        assert (scales == scale).all()
        assert torch.equal(from_few_bits(packed, scales, bits), values)


def test_what_was_rounded_to_int4_stays_as_it_is(in_int4, tmp_path):
    model = load_model(in_int4)
    save_model(model, tmp_path / "again", bits=4)
    first, again = (load_file(folder / WEIGHTS) for folder in (in_int4, tmp_path / "again"))
    assert all(torch.equal(again[key], tensor) for key, tensor in first.items() if tensor.dtype == torch.uint8)
    exact = model.state_dict()
    loaded = load_model(in_int4, dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(loaded[key], tensor.bfloat16()) for key, tensor in exact.items())


def test_groups_of_zeros_stay_zero_and_what_int4_cannot_hold_is_refused():
    assert torch.equal(from_few_bits(*to_few_bits(torch.zeros(2, 64))), torch.zeros(2, 64))
    for value in (torch.nan, torch.inf, 1e6):
        with pytest.raises(ValueError, match="NaN, infinite or huge values cannot be stored as int4"):
            to_few_bits(torch.full((1, 32), value))


def correlated_inputs(count):
    """Inputs of a matrix of 64 columns that lie near a space of 16 dimensions."""
    generator = generator_for("inputs")
    inside = torch.randn(count, 16, generator=generator) @ torch.randn(16, 64, generator=generator)
    return inside + 0.1 * torch.randn(count, 64, generator=generator)


@pytest.mark.parametrize("bits", [3, 4, 5])
def test_rounding_for_inputs_changes_outputs_less_than_rounding_to_the_nearest(matrix, bits):
    """Decision D82."""
    matrix, inputs, others = matrix[:, :64], *correlated_inputs(600).split([400, 200])
    nearest = from_few_bits(*to_few_bits(matrix, bits), bits)
    for_inputs = from_few_bits(*to_few_bits(matrix, bits, moments=inputs.T @ inputs), bits)
    errors = [(others @ (rounded - matrix).T).square().mean() for rounded in (nearest, for_inputs)]
    assert errors[1] < 0.3 * errors[0]
    assert (for_inputs - matrix).square().mean() > (nearest - matrix).square().mean()


def test_rounding_for_inputs_is_the_clear_version_of_gptq(matrix):
    inputs = correlated_inputs(200)
    moments = (inputs.T @ inputs).double()
    moments += 0.01 * moments.diagonal().mean() * torch.eye(64)
    values = matrix[:, :64].double().clone()
    expected = torch.empty_like(values)
    for column in range(64):
        if column % 32 == 0:
            scale = _best_scale(values[:, column : column + 32].float(), 8)[:, 0].double()
        expected[:, column] = (values[:, column] / scale).round().clamp(-8, 7) * scale
        inverse = torch.linalg.inv(moments[column:, column:])  # of the columns that are left
        error = (values[:, column] - expected[:, column]) / inverse[0, 0]
        values[:, column:] -= error[:, None] * inverse[0]
    rounded = from_few_bits(*to_few_bits(matrix[:, :64], moments=inputs.T @ inputs))
    same = (rounded.double() - expected).abs() < 1e-3
    assert same.float().mean() > 0.99  # float32 may round a value that lies between two points the other way


@pytest.mark.parametrize("bits", [3, 4, 5, 6])
def test_what_was_rounded_for_inputs_stays_as_it_is(matrix, bits):
    inputs = correlated_inputs(200)
    rounded = to_few_bits(matrix[:, :64], bits, moments=inputs.T @ inputs)
    for moments in (None, torch.eye(64), inputs.T @ inputs):
        again = to_few_bits(from_few_bits(*rounded, bits), bits, moments=moments)
        assert all(torch.equal(one, other) for one, other in zip(again, rounded, strict=True))


def test_rounding_for_inputs_without_correlation_or_without_inputs_is_to_the_nearest(matrix):
    nearest = to_few_bits(matrix)
    for moments in (torch.eye(128), torch.zeros(128, 128)):
        rounded = to_few_bits(matrix, moments=moments)
        assert all(torch.equal(one, other) for one, other in zip(rounded, nearest, strict=True))


def test_int4_is_for_matrices_of_blocks_whose_columns_fill_groups(in_int4):
    kinds = {name: tensor.dtype for name, tensor in load_file(in_int4 / WEIGHTS).items()}
    assert kinds[MATRIX] == torch.uint8
    assert kinds["blocks.1.down.weight"] == torch.int8  # 48 columns
    assert kinds["embed.weight"] == kinds["head.weight"] == torch.int8
    assert kinds["norm.weight"] == torch.float32


@pytest.mark.parametrize("name", BUILDERS)
def test_every_network_loads_from_few_bits_and_one_bit_more_halves_the_error(tmp_path, name):
    model = BUILDERS[name]()
    for bits, bound in ((3, 0.3), (4, 0.15), (5, 0.075), (6, 0.0375)):
        save_model(model, tmp_path / f"{bits}", bits=bits)
        loaded = load_model(tmp_path / f"{bits}").state_dict()
        for key, tensor in model.state_dict().items():
            assert (loaded[key] - tensor).norm() <= bound * tensor.norm()


def test_int4_takes_a_sixth_of_the_size_and_logits_stay_close(tmp_path):
    model, tokens = tiny.llada(replace(tiny.BACKBONE, width=256, mlp_width=512)), tiny.programs(2, 8)
    save_model(model, tmp_path / "whole")
    save_model(model, tmp_path / "int4", bits=4)
    sizes = [(tmp_path / name / WEIGHTS).stat().st_size for name in ("int4", "whole")]
    assert 0.14 < sizes[0] / sizes[1] < 0.16
    logits, found = model(tokens), load_model(tmp_path / "int4")(tokens)
    assert torch.nn.functional.cosine_similarity(found, logits, dim=-1).min() > 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(f"{MATRIX}.scale"), rf"lacks {MATRIX}\.scale, which the packed matrix {MATRIX} needs"),
        (lambda w: w.update({MATRIX: w[MATRIX][1:]}), rf"{MATRIX} has shape \(47, 16\)"),
        (
            lambda w: w.update({f"{MATRIX}.scale": w[f"{MATRIX}.scale"][1:]}),
            r"shape \(47, 1\), which does not fit",
        ),
        (
            lambda w: w.update({f"{MATRIX}.scale": w[f"{MATRIX}.scale"][:, 0]}),
            r"\(48,\), which does not fit 48 x 32",
        ),
        (
            lambda w: w.update({f"{MATRIX}.scale": torch.ones(48, 3).half()}),
            r"\(48, 3\), which does not fit 48 x 32",
        ),
        (
            lambda w: w.update({f"{MATRIX}.scale": torch.ones(48, 0).half()}),
            r"\(48, 0\), which does not fit 48 x 32",
        ),
        (lambda w: w.update({f"{MATRIX}.scale": torch.ones(48, 1)}), "must be finite and in float16"),
        (lambda w: w[f"{MATRIX}.scale"][3].fill_(torch.nan), rf"{MATRIX}\.scale is damaged"),
        (
            lambda w: w.update(
                {"norm.weight": torch.ones(32, dtype=torch.uint8), "norm.weight.scale": torch.ones(32)}
            ),
            r"norm\.weight is packed, but not a matrix",
        ),
    ],
)
def test_damaged_int4_is_an_error_of_one_line(in_int4, change, message):
    assert_refused_in_one_line(in_int4, change, message)


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="cannot be written"):
        write_tensors({"x": torch.zeros(2)}, tmp_path)
