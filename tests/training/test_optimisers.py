"""Muon: its update, the parameters it is used for, and that a run with it resumes to the same bits."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from crocodil.presets.runs import tiny
from crocodil.runtime.distributed import Ranks
from crocodil.training import checkpointing
from crocodil.training.loop import LoopConfig, initial_state, prepare, take_step
from crocodil.training.optimisers import Muon, hidden_matrices, orthogonalise
from crocodil.training.run import run_stage
from crocodil.training.stage_setup import base_stage, conditional_stage, guided_stage
from crocodil.training.workspace import Workspace

BETAS = (0.9, 0.95)
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without half precision; it goes on


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def muon(*matrices, lr=0.02, weight_decay=0.1):
    return Muon([{"params": matrices, "hidden": True, "weight_decay": weight_decay}], lr=lr, betas=BETAS)


# ---------------------------------------------------------------- the step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64), (192, 64), (64, 192)])
def test_orthogonalised_matrices_have_singular_values_near_one_and_the_same_singular_vectors(shape, dtype):
    matrices = 1e-3 * normal(3, *shape)
    found = orthogonalise(matrices.to(dtype)).float()
    assert found.shape == matrices.shape
    values = torch.linalg.svdvals(found)
    if shape[0] == shape[1]:
        values = values[:, :-3]  # the smallest of a square matrix are next to zero, and five iterations too few
    assert values.min() > 0.6
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    assert torch.cosine_similarity(found.flatten(1), (left @ right).flatten(1)).min() > 0.95


def test_a_batch_equals_its_matrices_one_by_one_and_zero_stays_zero():
    matrices = torch.cat([normal(4, 48, 32), torch.zeros(1, 48, 32)])
    one_by_one = torch.cat([orthogonalise(one[None]) for one in matrices])
    assert torch.allclose(orthogonalise(matrices), one_by_one, atol=1e-5)
    assert not one_by_one[-1].any()


def test_the_iteration_equals_that_of_torch_in_bfloat16():
    matrix = normal(96, 64)
    theirs, zero = nn.Parameter(torch.zeros_like(matrix)), torch.zeros_like(matrix)
    theirs.grad = matrix
    torch.optim.Muon([theirs], lr=1.0, momentum=0.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw").step()
    ours = zero - 0.2 * 96**0.5 * orthogonalise(matrix[None].bfloat16())[0].float()
    assert torch.allclose(ours, theirs.detach(), atol=0.02 * ours.abs().max().item())


@pytest.mark.parametrize("shape", [(64, 64), (96, 64), (64, 96)])
def test_the_steps_equal_those_of_torch(shape):
    ours, theirs = (nn.Parameter(normal(*shape)) for _ in range(2))
    steps = muon(ours), torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for seed in range(1, 6):
        ours.grad = theirs.grad = normal(*shape, seed=seed)
        for one in steps:
            one.step()
    moved = (theirs - normal(*shape)).norm()
    assert (ours - theirs).norm() < 0.03 * moved  # torch iterates in half precision, this CPU in single
    assert moved > 0.1


def test_the_update_is_as_large_as_that_of_adamw():
    matrices = [nn.Parameter(torch.zeros(shape)) for shape in ((64, 64), (192, 64))]
    for matrix in matrices:
        matrix.grad = normal(*matrix.shape)
    muon(*matrices, lr=1.0).step()
    assert [matrix.square().mean().sqrt().item() for matrix in matrices] == pytest.approx([0.2, 0.2], abs=0.04)


def test_other_parameters_are_updated_exactly_by_adamw():
    ours, theirs = (nn.Parameter(normal(8, 4)) for _ in range(2))
    steps = (
        Muon([{"params": [ours], "weight_decay": 0.1}], lr=0.01, betas=BETAS),
        torch.optim.AdamW([theirs], lr=0.01, betas=BETAS, weight_decay=0.1, fused=True),
    )
    for seed in range(3):
        ours.grad = theirs.grad = normal(8, 4, seed=seed)
        for one in steps:
            one.step()
    assert torch.equal(ours, theirs)


def test_parameters_without_a_gradient_and_a_rate_of_zero_do_not_move():
    trained, frozen = nn.Parameter(normal(8, 8)), nn.Parameter(normal(8, 8))
    optimiser = muon(trained, frozen)
    trained.grad = normal(8, 8, seed=1)
    for group in optimiser.param_groups:
        group["lr"] = 0.0
    optimiser.step()
    assert torch.equal(trained, normal(8, 8))
    optimiser.param_groups[0]["lr"] = 0.1
    optimiser.step()
    assert not torch.equal(trained, normal(8, 8))
    assert torch.equal(frozen, normal(8, 8))
    assert set(optimiser.state) == {trained}


def test_muon_learns_a_regression():
    inputs, target = normal(256, 16), normal(16, 8, seed=1)
    network = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 8))
    for seed, parameter in enumerate(network.parameters()):
        nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(seed))
    hidden = hidden_matrices([network[0]])
    others = [parameter for parameter in network.parameters() if parameter not in hidden]
    optimiser = Muon([{"params": list(hidden), "hidden": True}, {"params": others}], lr=0.05, betas=BETAS)
    losses = []
    for step in range(100):
        optimiser.param_groups[0]["lr"] = optimiser.param_groups[1]["lr"] = 0.05 * (1 - step / 100)
        optimiser.zero_grad()
        losses.append((network(inputs) - inputs @ target).square().mean())
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < 0.01 * losses[0]


# ---------------------------------------------------------------- in the loop


def with_muon(run, **changes):
    loop = replace(run.base_loop, optimiser="muon", **changes)
    return replace(run, base_loop=loop, guided_loop=loop, conditional_loop=loop)


@pytest.mark.parametrize(
    ("make", "hidden", "others"),
    [
        (base_stage, {"demasker.blocks.0.query.weight", "demasker.blocks.1.down.weight"},
         {"demasker.embed.weight", "demasker.head.weight", "demasker.blocks.0.ff_norm.weight"}),
        (guided_stage, {"demasker.backbone.blocks.0.gate.weight", "encoder.backbone.layers.1.mlp.up_proj.weight"},
         {"demasker.boundaries", "demasker.register_map.weight", "encoder.suffix", "encoder.register_map.weight",
          "encoder.backbone.embed_tokens.weight", "encoder.backbone.layers.0.self_attn.q_norm.weight"}),
        (conditional_stage, {"denoiser.blocks.0.attention.key_value.weight", "denoiser.blocks.1.mlp.2.weight"},
         {"denoiser.blocks.0.table", "denoiser.blocks.0.mlp.0.bias", "denoiser.pos_embed", "denoiser.final_table",
          "denoiser.time_modulation.weight", "denoiser.condition_embed.null", "denoiser.proj_out.weight"}),
    ],
)  # fmt: skip
def test_muon_is_used_for_the_matrices_of_repeated_blocks_only(trained, corpus, make, hidden, others):
    stage, loop = make(with_muon(tiny(corpus)), Workspace(corpus, trained, trained))
    state = initial_state(stage, loop)
    names = {parameter: name for name, parameter in state.parameters.items()}
    found = {
        kind: {
            names[one]
            for group in state.optimiser.param_groups
            if group["hidden"] is kind
            for one in group["params"]
        }
        for kind in (True, False)
    }
    assert hidden <= found[True]
    assert others <= found[False]
    assert found[True] | found[False] == set(state.parameters)
    assert not found[True] & found[False]
    inside = ".blocks.", ".layers."
    assert found[True] == {
        name
        for name, one in state.parameters.items()
        if one.ndim == 2 and any(part in name for part in inside) and not name.endswith("table")
    }


def test_a_run_with_muon_resumes_to_the_same_bits(corpus, tmp_path):
    run = with_muon(tiny(corpus), num_steps=6, save_every=2, evaluate_every=100)
    whole, halves = (Workspace(corpus, tmp_path / name, tmp_path / name) for name in ("whole", "halves"))
    assert run_stage("base", run, whole)
    for step in range(3):  # out of time after every step
        assert not run_stage("base", run, halves, resume=step > 0, max_minutes=1e-9)
    assert run_stage("base", run, halves, resume=True)
    states = []
    for workspace in (whole, halves):
        state = initial_state(*base_stage(run, workspace))
        assert checkpointing.restore(state, workspace.out / "base" / "checkpoints")
        states.append(checkpointing._tensors(state))
    assert states[0].keys() == states[1].keys()
    assert "momentum/demasker.blocks.0.query.weight" in states[0]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    other = initial_state(*base_stage(tiny(corpus), whole))
    with pytest.raises(ValueError, match="was written with another optimiser: it holds momentum/demasker"):
        checkpointing.restore(other, whole.out / "base" / "checkpoints")


def test_moments_of_frozen_parameters_are_not_saved_and_the_others_resume_bit_for_bit(trained, corpus, tmp_path):
    """In its warm-up the guided stage trains the encoder's matrices and not the demasker's."""
    workspace, run = Workspace(corpus, trained, trained), with_muon(tiny(corpus))
    stage, loop = guided_stage(run, workspace)
    state = initial_state(stage, loop)
    take_step(stage, state, loop)
    checkpointing.save(state, tmp_path, keep=1)
    before = copy.deepcopy(checkpointing._tensors(state))
    assert not any(name.startswith("momentum/demasker.backbone") for name in before)
    again = initial_state(*guided_stage(run, workspace))
    assert checkpointing.restore(again, tmp_path)
    after = checkpointing._tensors(again)
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_an_unknown_optimiser_or_sharded_muon_is_one_clear_line(corpus, tmp_path):
    with pytest.raises(ValueError, match="optimiser should be 'adamw' or 'muon', not 'sgd'"):
        LoopConfig(num_steps=1, batch_size=1, learning_rate=1.0, optimiser="sgd")
    stage, loop = base_stage(with_muon(tiny(corpus)), Workspace(corpus, tmp_path, tmp_path))
    with pytest.raises(ValueError, match="Muon runs in one process"):
        prepare(stage, loop, Ranks(count=2))
