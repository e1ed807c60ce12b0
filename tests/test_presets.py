"""The shapes and numbers of the paper and of the first model, and the fields that ablations change."""

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest
import torch

import crocodil
from crocodil.checkpoints.format import model_config
from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.objectives import sample_visible_registers
from crocodil.presets import models
from crocodil.presets.ablated import ABLATIONS
from crocodil.presets.assumed import assumed_corpus
from crocodil.presets.rates import MEASURED, hours, rate_of
from crocodil.presets.runs import (
    builtin,
    laptop,
    medium,
    paper,
    paper_one_gpu,
    paper_plus,
    preset,
    small,
    tiny,
)
from crocodil.seeding import Streams, generator_for
from crocodil.training.adapting import check_encoder_fits_base, init_from_base
from crocodil.training.estimate import estimates, step_flops
from crocodil.training.run_config import Pretrained

MIB = 1 << 20


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_papers_encoder_is_qwen3_embedding_with_127_suffix_registers():
    with torch.device("meta"):
        encoder = RegisterEncoder(models.paper_encoder())
    assert count(encoder.backbone) == 595_776_512  # Qwen3-Embedding-0.6B
    assert count(encoder) - count(encoder.backbone) == 127 * 1024


def test_the_papers_demasker_adds_only_the_interface_to_llada_8b():
    with torch.device("meta"):
        demasker = Demasker(models.paper_demasker())
    assert count(demasker) - count(demasker.backbone) == 1024 * 4096 + 2 * 4096
    assert sum(parameter.numel() for parameter in demasker.interface()) == 1024 * 4096 + 2 * 4096


def built_in(corpus):
    """The run of the first model, with its vocabulary."""
    run = small(corpus)
    backbone = replace(run.demasker.backbone, vocab_size=8192)
    return replace(
        run,
        demasker=replace(run.demasker, backbone=backbone),
        encoder=replace(run.encoder, vocab_size=8192),
    )


def test_the_shipped_networks_of_small_take_less_than_80_mib_at_a_byte_per_weight(corpus):
    run = built_in(corpus)
    with torch.device("meta"):
        shipped = [Demasker(run.demasker), RegisterEncoder(run.encoder), RegisterDenoiser(run.conditional)]
    assert 70 * MIB < sum(count(network) for network in shipped) < 77 * MIB


def test_the_encoder_of_small_can_be_initialised_from_its_base(corpus):
    run = built_in(corpus)
    with torch.device("meta"):
        encoder, base = RegisterEncoder(run.encoder), LLaDA(run.demasker.backbone)
    assert run.encoder_begins_as_base
    for network, value in ((base, 1.0), (encoder, 0.0)):
        for parameter in network.to_empty(device="cpu").parameters():
            torch.nn.init.constant_(parameter, value)
    init_from_base(encoder, base, generator_for("registers"))
    assert encoder.backbone.layers[-1].mlp.down_proj.weight.eq(1).all()


# ---------------------------------------------------------------- between toy and 8B


def of(name):
    return preset(name, assumed_corpus(name)[0], Pretrained())


@cache
def needed(name):
    return {part.stage: part for part in estimates(of(name))}


@pytest.mark.parametrize(
    ("shape", "num_parameters", "num_added_rows"),
    [(models.smollm2_135m(), 134_515_008, 64), (models.qwen25_coder_05b(), 494_032_768, 0)],
)
def test_the_shapes_of_causal_models_have_their_numbers_of_parameters(shape, num_parameters, num_added_rows):
    with torch.device("meta"):
        assert count(LLaDA(shape)) == num_parameters + num_added_rows * shape.width


@pytest.mark.parametrize(("name", "gigabytes"), [("laptop", 2), ("small", 8), ("builtin", 16), ("medium", 24)])
def test_every_stage_of_a_preset_fits_its_device(name, gigabytes):
    assert max(part.gigabytes for part in needed(name).values()) < 0.9 * gigabytes


def test_laptop_takes_a_night_and_medium_a_day():
    def total(name):
        stages = ("base", "guided", "conditional")  # one denoiser is both priors
        return sum(hours(needed(name)[stage].flops, rate_of(name, stage)) for stage in stages)

    assert 8 < total("laptop") < 10
    assert 12 < total("medium") < 16


def test_micro_batches_of_small_leave_its_batches_and_steps():
    loop = small(assumed_corpus("small")[0]).guided_loop
    assert (loop.batch_size, loop.num_steps, loop.recompute_blocks) == (256, 6000, False)


def test_drafts_cost_what_the_docs_say():
    run = small(assumed_corpus("small")[0])
    drafting = replace(run, guided_objective=replace(run.guided_objective, draft_rate=0.5))
    more = step_flops(drafting)["guided"] / step_flops(run)["guided"] - 1
    docs = Path(__file__).parent.parent / "docs" / "training.md"
    assert f"A step of `small` then has {more:.0%} more operations" in " ".join(docs.read_text().split())


def test_measured_hours_are_steps_times_measured_seconds():
    for (name, stage), step in MEASURED.items():
        run = of(name)
        steps = getattr(run, f"{stage}_loop").num_steps
        flops = steps * step_flops(run)[stage]
        assert hours(flops, rate_of(name, stage)) == pytest.approx(steps * step.seconds / 3600)


def test_preset_builtin_has_the_networks_and_the_drawing_of_the_built_in_model():
    run, folder = of("builtin"), Path(crocodil.__file__).parent / "builtin"
    assert run.demasker == model_config(folder / "demasker")
    assert run.encoder == model_config(folder / "encoder")
    stored = model_config(folder / "conditional")
    assert replace(run.conditional_shape, fresh_noise=run.distil_objective.by_matching) == stored
    drawing = json.loads((folder / "crocodil.json").read_text())["drawing"]
    assert run.distil_objective.draw_steps == drawing["prior_steps"]
    assert run.prior_objective.time_shift == drawing["time_shift"]
    check_encoder_fits_base(run.encoder, run.demasker.backbone)


def test_the_speeds_of_builtin_follow_from_the_minutes_on_its_card():
    card = (Path(crocodil.__file__).parent / "builtin" / "README.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in card.splitlines() if line.startswith("|")]
    # It was trained on six batches of 256 tokens for one of 512; the preset has two for one.
    longer = fmean([256, 256, 512]) / fmean([256] * 6 + [512])
    for stage in ("base", "guided", "conditional", "distilled"):
        runs = [row for row in rows if row[0].split(",")[0] == stage and len(row) == 6]
        seconds = 60 * sum(float(row[5]) for row in runs) / sum(int(row[1]) for row in runs)
        expected = seconds * longer if stage in ("base", "guided") else seconds
        assert MEASURED["builtin", stage].seconds == pytest.approx(expected, rel=0.01)


def test_the_encoder_of_medium_can_be_initialised_from_its_base():
    run = of("medium")
    assert run.encoder_begins_as_base
    assert run.demasker.backbone == models.qwen25_coder_05b()
    check_encoder_fits_base(run.encoder, run.demasker.backbone)
    assert run.encoder.without_qk_norm  # so its blocks compute what the base's do


# ---------------------------------------------------------------- the paper's run, and our additions


def flat(config):
    """Return all fields of a run by their dotted names."""
    found = {}
    for name, value in config.items():
        found |= (
            {f"{name}.{key}": one for key, one in flat(value).items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return found


def changes(before, after):
    """Return the fields in which two runs differ, with the new values."""
    old, new = flat(asdict(before)), flat(asdict(after))
    return {name: value for name, value in new.items() if old.get(name) != value}


def test_preset_paper_has_the_papers_numbers_and_no_additions(corpus):
    run = paper(corpus, Pretrained())
    guided, prior = run.guided_objective, run.prior_objective
    assert run.lengths == (4096,)  # Sec. 5
    assert run.prior.num_registers == run.conditional.num_registers == run.conditional.condition_length == 128
    assert (run.prior, run.conditional) == (models.paper_prior(), models.paper_conditional_prior())
    assert (guided.register_cosine, guided.all_mask_rate, guided.nested_dropout) == (0.8, 0.25, True)
    assert guided.prefix_lengths == ()
    assert guided.empty_prefix_rate == guided.given_rate == guided.partial_rate == 0
    assert prior.condition_drop_rate == prior.given_rate == prior.bare_rate == 0
    assert not any((run.demasker.across_text, run.encoder.across_text, run.prior.self_conditioned))
    assert run.encoder.causal
    assert {run.guided_loop.optimiser, run.prior_loop.optimiser} == {"adamw"}


def test_our_additions_to_the_paper_are_preset_paper_plus(corpus):
    run, plus = paper(corpus, Pretrained()), paper_plus(corpus, Pretrained())
    assert changes(run, plus) == {
        "guided_objective.empty_prefix_rate": 0.1,
        "guided_objective.given_rate": 0.1,
        "prior_objective.condition_drop_rate": 0.1,
        "prior_objective.given_rate": 0.25,
        "prior.num_registers": 8,
        "conditional.num_registers": 8,
    }
    assert preset("paper-plus", corpus, Pretrained()) == plus


def test_preset_paper_one_gpu_has_the_papers_objectives(corpus):
    changed = changes(paper(corpus, Pretrained()), paper_one_gpu(corpus, Pretrained()))
    assert {name.split(".")[0] for name in changed} == {
        "lengths", "base_loop", "guided_loop", "lora", "prompted_objective",
    }  # fmt: skip
    assert changed["lengths"] == (512,)


# ---------------------------------------------------------------- ablations

PRESETS = {
    "tiny": tiny,
    "laptop": laptop,
    "small": small,
    "builtin": builtin,
    "medium": medium,
    "paper": lambda corpus: paper(corpus, Pretrained()),
    "paper-plus": lambda corpus: paper_plus(corpus, Pretrained()),
}
NETWORKS = {
    "demasker": Demasker,
    "encoder": RegisterEncoder,
    "prior": RegisterDenoiser,
    "conditional": RegisterDenoiser,
}
BEFORE_TEXT = {"demasker.across_text": False, "encoder.across_text": False}
LITERAL = {**BEFORE_TEXT, "demasker.literal_positions": True}
NAMED = {  # the fields that an ablation sets
    "without register noise": {"guided_objective.register_cosine": 1.0},
    "register noise from halfway": {"register_noise_from": ...},  # half of the preset's steps
    "without nested dropout": {"guided_objective.nested_dropout": False},
    "without all-mask samples": {"guided_objective.all_mask_rate": 0.0},
    "without block offsets": {"prior_objective.largest_offset": 0.0},
    "literal two-axis RoPE": LITERAL,
    "as printed": {
        **LITERAL,
        "encoder.causal": True,
        "encoder_begins_as_base": False,
        "denoiser_begins_as_demasker": False,
        "encoder_warmup_steps": 4000,
        "prior.self_conditioned": False,
        "conditional.self_conditioned": False,
        **{
            f"{loop}.optimiser": "adamw" for loop in ("base_loop", "guided_loop", "prior_loop", "conditional_loop")
        },
        "guided_objective.empty_prefix_rate": 0.0,
        "guided_objective.given_rate": 0.0,
        "guided_objective.partial_rate": 0.0,
        "guided_objective.prefix_lengths": (),
        "guided_objective.draft_rate": 0.0,
        "guided_objective.register_cosine": 0.8,
        "guided_objective.uniform_noise": False,
        "prior_objective.condition_drop_rate": 0.0,
        "prior_objective.given_rate": 0.0,
        "prior_objective.bare_rate": 0.0,
        "prior_objective.smallest_noise": 0.0,
        "prior_objective.time_shift": 1.0,
        "prior_objective.largest_offset": 0.1,
    },
}


@pytest.mark.parametrize("name", ABLATIONS)
@pytest.mark.parametrize("kind", PRESETS)
def test_an_ablation_changes_only_its_fields_in_every_preset(corpus, name, kind):
    run = PRESETS[kind](corpus)
    other = ABLATIONS[name](run)
    before, wanted = flat(asdict(run)), dict(NAMED[name])
    if name == "register noise from halfway":
        wanted = {"register_noise_from": (run.guided_loop.num_steps + 1) // 2}
    if name == "as printed":
        wanted |= {f"{prior}.num_registers": run.encoder.num_registers for prior in ("prior", "conditional")}
        if kind in ("tiny", "laptop", "medium"):
            del wanted["encoder_warmup_steps"]  # these have no more than 4,000 steps
    expected = {field: value for field, value in wanted.items() if before[field] != value}
    assert changes(run, other) == expected
    assert expected or (kind, name) == ("builtin", "without block offsets")  # it has none
    with torch.device("meta"):  # networks that it changes can be built
        for part, network in NETWORKS.items():
            if getattr(other, part) != getattr(run, part):
                network(getattr(other, part))


def test_without_nested_dropout_all_registers_are_visible_in_every_preset(corpus):
    run = small(corpus)
    other = ABLATIONS["without nested dropout"](run)
    streams = Streams.of("prefix", samples=range(200))
    seen, all_seen = (
        set(sample_visible_registers(64, one.guided_objective, streams).tolist()) for one in (run, other)
    )
    assert seen == {0, 1, 2, 4, 8, 16, 32, 64}
    assert all_seen == {0, 64}  # none, at the preset's `empty_prefix_rate`


@pytest.mark.parametrize("kind", PRESETS)
def test_as_printed_is_the_same_method_from_every_preset(corpus, kind):
    printed = ABLATIONS["as printed"](PRESETS[kind](corpus))
    papers = ABLATIONS["as printed"](paper(corpus, Pretrained()))
    assert printed.guided_objective == papers.guided_objective
    assert printed.prior_objective == papers.prior_objective
    assert printed.prior.num_registers == printed.conditional.condition_length == printed.encoder.num_registers
    assert ABLATIONS["as printed"](printed) == printed
