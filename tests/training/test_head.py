"""Stage head, at toy size: a causal head learns to draw the tokens of a call in turn (decision D88)."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from crocodil import cli
from crocodil.checkpoints.format import load_model
from crocodil.cli.exporting import _check_head
from crocodil.models.causal_head import CausalHead, CausalHeadConfig
from crocodil.objectives import DemaskerObjective, HeadObjective, PriorObjective, in_turn_loss
from crocodil.objectives.in_turn import choose_hidden, in_turn_nats, sample_call
from crocodil.pipeline import Crocodil
from crocodil.presets.runs import tiny as tiny_preset
from crocodil.seeding import Streams, generator_for
from crocodil.training.estimate import step_flops
from crocodil.training.head import HeadStage
from crocodil.training.history import read_run_summary
from crocodil.training.record import write_checksummed
from crocodil.training.run import run_stage
from crocodil.training.spent import Shapes, flops_of_run, inherited_flops, read_record
from crocodil.training.stage_setup import head_stage
from crocodil.training.workspace import Workspace

LENGTH = 16
AS_PRINTED = DemaskerObjective(given_rate=0.0)


def encode_nothing(tokens, hidden=None):
    """Registers that do not depend on the text."""
    return tiny.bank(len(tokens))


def call_on(tokens, demasker, *, encode=encode_nothing, guided=AS_PRINTED, **objective):
    return sample_call(
        encode, demasker, tokens, objective=HeadObjective(**objective), guided_objective=guided, mask_id=tiny.MASK,
        streams=tiny.streams(len(tokens)),
    )  # fmt: skip


# ---------------------------------------------------------------- the loss


def test_the_head_reads_what_is_visible_and_what_is_drawn_and_no_other_hidden_token():
    tokens, demasker = tiny.programs(40, LENGTH), tiny.demasker()
    call = call_on(tokens, demasker, whole_rate=0.0)
    assert call.known[call.drawn].equal(tokens[call.drawn])
    unknown = call.known == tiny.MASK
    assert unknown.any()
    assert not (unknown & call.drawn).any()
    assert call.known[~unknown].equal(tokens[~unknown])
    assert not call.drawn[:, 0].any()


def test_of_a_whole_text_all_tokens_are_drawn_again_but_for_the_first():
    tokens = tiny.programs(6, LENGTH)
    call = call_on(tokens, tiny.demasker(), whole_rate=1.0)
    assert call.known.equal(tokens)
    assert call.drawn[:, 1:].all()
    assert not call.drawn[:, 0].any()


def test_a_hidden_token_changes_its_own_loss_and_that_of_later_tokens_if_it_is_drawn():
    demasker, tokens = tiny.demasker(), tiny.programs(12, LENGTH)
    head, guided = tiny.causal_head(), replace(AS_PRINTED, draft_rate=0.5)

    def nats(some):
        call = call_on(some, demasker, guided=guided, whole_rate=0.0)
        rows = in_turn_nats(head, demasker.backbone, call, some).detach()
        return call, torch.zeros(some.shape).masked_scatter(call.drawn, rows)

    call, before = nats(tokens)
    reads = torch.zeros(2, dtype=torch.int64)
    for place in range(1, LENGTH):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % tiny.EOS
        other, after = nats(changed)
        was_hidden = call.drawn[:, place] | (call.known[:, place] == tiny.MASK)
        differs = ((before - after).abs() > 1e-6)[was_hidden]
        assert other.drawn[was_hidden].equal(call.drawn[was_hidden])
        drawn = call.drawn[was_hidden, place]
        assert not differs[:, :place].any()
        assert not differs[~drawn].any()
        assert differs[drawn, place].all()
        reads += torch.stack([differs[drawn, place + 1 :].sum(), drawn.sum()])
    assert reads[0] > 0  # later tokens read it
    assert reads[1] > 0


def test_certain_tokens_are_drawn_before_others_whose_order_is_random():
    hidden = torch.ones(200, 8, dtype=torch.bool)
    hidden[:, 3] = False
    logits = torch.zeros(200, 7, 5000)
    logits[:, -1, 0] = 100
    chosen = choose_hidden(logits.flatten(0, 1), hidden, tiny.streams(200))
    counts = chosen.sum(dim=1)
    assert set(counts.tolist()) == set(range(1, 8))  # any share of the hidden ones
    assert chosen[:, 7].all()
    assert not chosen[:, 3].any()
    seconds = chosen[counts == 2][:, :7].float().argmax(dim=1)
    assert set(seconds.tolist()) == {0, 1, 2, 4, 5, 6}


def test_the_loss_does_not_depend_on_how_a_batch_is_split_and_is_per_drawn_token():
    demasker, tokens, streams = tiny.demasker(), tiny.programs(400, LENGTH), tiny.streams(400)
    head = tiny.causal_head()

    def loss(part):
        return in_turn_loss(
            lambda some, hidden: tiny.bank(400)[part], demasker, head, tokens[part], objective=HeadObjective(),
            guided_objective=AS_PRINTED, mask_id=tiny.MASK, streams=Streams(streams.keys[part]),
        )  # fmt: skip

    whole = loss(slice(0, 400))
    assert torch.allclose(whole, torch.stack([loss(slice(0, 200)), loss(slice(200, 400))]).mean(), rtol=1e-4)
    call = call_on(tokens, demasker)
    mean = in_turn_nats(head, demasker.backbone, call, tokens).mean()
    assert whole.item() == pytest.approx(mean.item(), rel=0.1)
    assert call.drawn.float().mean().item() == pytest.approx(HeadObjective().predicted_share(0.25), rel=0.1)


def test_a_head_learns_what_the_tokens_of_one_call_have_in_common():
    """Texts count up from a random token: each token follows from the one before it, and alone it may be any."""
    demasker = tiny.demasker().requires_grad_(False)
    head = CausalHead(CausalHeadConfig(backbone=tiny.BACKBONE))
    head.init_weights(demasker.backbone, generator_for("head"))
    starts = torch.arange(16)[:, None] * 2
    tokens = (starts + torch.arange(LENGTH)) % tiny.EOS
    options = {"guided_objective": AS_PRINTED, "mask_id": tiny.MASK}
    before = {name: weight.clone() for name, weight in demasker.state_dict().items()}

    def loss_of(streams):
        return in_turn_loss(
            encode_nothing, demasker, head, tokens, objective=HeadObjective(), streams=streams, **options
        )

    first = loss_of(tiny.streams(16)).item()
    tiny.overfit(loss_of, head, steps=80, count=16)
    assert loss_of(tiny.streams(16)).item() < 0.5 * first
    call = call_on(tokens, demasker, whole_rate=0.0)
    in_turn = in_turn_nats(head, demasker.backbone, call, tokens).mean()
    logits = demasker.backbone.logits(call.states[call.drawn])
    assert in_turn < 0.5 * torch.nn.functional.cross_entropy(logits, tokens[call.drawn])
    assert all(weight.equal(before[name]) for name, weight in demasker.state_dict().items())


# ---------------------------------------------------------------- the stage


def heading(corpus, **fields):
    run = tiny_preset(corpus)
    loop = replace(run.head_loop, num_steps=6, save_every=2, evaluate_every=6, warmup_steps=0, average_decay=0.5)
    return replace(run, head_loop=loop, **fields)


@pytest.fixture(scope="module")
def headed(trained, corpus, tmp_path_factory):
    """A run whose stage head was trained for a few steps."""
    out = tmp_path_factory.mktemp("headed")
    assert run_stage("head", heading(corpus), Workspace(corpus, out, trained))
    return out


def rows(out):
    return [json.loads(line) for line in (out / "head" / "metrics.jsonl").read_text().splitlines()]


def test_stage_head_resumes_to_the_same_bits(trained, corpus, headed, tmp_path):
    run, workspace = heading(corpus), Workspace(corpus, tmp_path, trained)
    assert not run_stage("head", run, workspace, max_minutes=1e-9)
    assert run_stage("head", run, workspace, resume=True)
    whole, parts = (
        load_file(out / "head" / "model" / "causal_head" / "model.safetensors") for out in (headed, tmp_path)
    )
    assert set(whole) == set(parts)
    assert all(tensor.equal(parts[name]) for name, tensor in whole.items())
    other = replace(run, head_objective=HeadObjective(whole_rate=0.5))
    (tmp_path / "head" / "model").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="head_objective"):
        run_stage("head", other, workspace, resume=True)


def test_validation_compares_tokens_drawn_at_once_and_in_turn(headed):
    first, last = (row for row in rows(headed) if "valid cross-entropy at mask 1.0 in turn" in row)
    for prob in (0.5, 1.0):
        name = f"valid cross-entropy at mask {prob}"
        assert first[f"{name} in turn"] == pytest.approx(first[f"{name} at once"], rel=1e-5)  # a new head
        assert last[f"{name} at once"] == first[f"{name} at once"]  # the demasker is frozen
        assert last[f"{name} in turn"] < first[f"{name} in turn"]
        assert last[f"valid top-1 at mask {prob} in turn"] > 0


def test_a_list_of_runs_shows_a_stage_beyond_the_paper_where_a_run_has_begun_it(headed):
    listed = CliRunner().invoke(cli.app, ["runs", "list", str(headed.parent)]).output
    header = next(line for line in listed.splitlines() if "guided" in line)
    assert "head" in header
    assert "prompted" not in header


def test_a_run_with_a_damaged_record_is_listed(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    record = tmp_path / "run" / "guided" / "stage.json"
    record.write_text(record.read_text().replace("settings", "damaged"))
    listed = CliRunner().invoke(cli.app, ["runs", "list", str(tmp_path)])
    assert listed.exit_code == 0
    assert "finished" in listed.output


def test_only_the_head_is_saved_and_it_loads(headed):
    folders = [path.name for path in (headed / "head" / "model").iterdir()]
    assert folders == ["causal_head"]
    head = load_model(headed / "head" / "model" / "causal_head")
    assert isinstance(head, CausalHead)
    assert head.proj_out.weight.abs().max() > 0


def test_frozen_networks_have_no_gradients(trained, corpus):
    stage, _ = head_stage(heading(corpus), Workspace(corpus, trained, trained))
    stage.loss(0, range(4)).backward()
    assert all(one.grad is None for network in (stage.encoder, stage.demasker) for one in network.parameters())
    assert stage.head.proj_out.weight.grad.abs().max() > 0


def test_the_operations_of_a_step_are_those_of_the_estimate(trained, corpus):
    plain = heading(corpus)
    drafting = replace(plain, guided_objective=replace(plain.guided_objective, draft_rate=0.5))
    for run in (plain, drafting):
        stage, loop = head_stage(run, Workspace(corpus, trained, trained))
        assert loop.batch_size * stage.work().flops == pytest.approx(step_flops(run)["head"])
    assert step_flops(drafting)["head"] > step_flops(plain)["head"]


def test_stage_head_inherits_the_operations_of_base_and_guided(headed):
    work = json.loads((headed / "head" / "stage.json").read_text())["work"]
    assert set(work["inherited"]) == {"base", "guided"}
    assert work["flops"] > 0


def test_a_head_of_an_exported_model_is_trained_without_its_run(trained, corpus, headed, tmp_path):
    run = replace(heading(corpus), head_of=trained / "guided" / "model")
    assert run_stage("head", run, Workspace(corpus, tmp_path / "own", tmp_path / "own"))
    there, here = (
        load_file(out / "head" / "model" / "causal_head" / "model.safetensors")
        for out in (headed, tmp_path / "own")
    )
    assert all(torch.equal(here[name], there[name]) for name in there)
    with pytest.raises(ValueError, match="is missing: head_of is the folder model of a finished stage guided"):
        run_stage(
            "head", replace(run, head_of=tmp_path), Workspace(corpus, tmp_path / "other", tmp_path / "other")
        )
    other = replace(run.demasker, backbone=replace(run.demasker.backbone, mlp_width=8))
    with pytest.raises(ValueError, match="has another shape than the run"):
        run_stage("head", replace(run, demasker=other), Workspace(corpus, tmp_path / "other", tmp_path / "other"))


def test_export_puts_the_head_into_the_model_and_its_tokens_are_drawn_in_turn(trained, corpus, headed, tmp_path):
    for stage in ("guided", "prior"):
        (headed / stage).symlink_to(trained / stage)
    (headed / "run.json").write_bytes((trained / "run.json").read_bytes())
    words = [
        "export",
        headed,
        "--data",
        corpus.directory,
        "--out",
        tmp_path / "model",
        "--bits",
        "8,causal_head=4",
    ]
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    pipe = Crocodil.from_pretrained(tmp_path / "model", device="cpu")
    exact = load_model(headed / "head" / "model" / "causal_head").state_dict()
    stored = pipe.causal_head.state_dict()
    assert all(torch.allclose(stored[name], weight, atol=0.1) for name, weight in exact.items())
    name = "block.up.weight"
    assert len(stored[name].unique()) < len(exact[name].unique())  # rounded
    assert "| head | 6 |" in (tmp_path / "model" / "README.md").read_text()
    alone, in_turn = (pipe.generate(2, calls=2, in_turn=how).tokens for how in ("no", "all"))
    assert not torch.equal(alone, in_turn)


def test_export_draws_as_the_priors_were_trained_although_stage_head_ran_later(trained, corpus, tmp_path):
    run, workspace = heading(corpus), Workspace(corpus, tmp_path, trained)
    objective = PriorObjective(smallest_noise=0.7, time_shift=0.5, largest_offset=0.0)
    loop = replace(run.prior_loop, num_steps=1)
    assert run_stage("prior", replace(run, prior_objective=objective, prior_loop=loop), workspace)
    assert run_stage("head", run, workspace)
    assert read_run_summary(tmp_path).prior_objective == objective


def test_a_summary_has_the_settings_of_the_priors_and_not_those_of_stage_prompted(trained, tmp_path):
    (tmp_path / "run.json").write_bytes((trained / "run.json").read_bytes())
    for stage, shift in (("conditional", 0.5), ("prompted", 2.0)):
        (tmp_path / stage).mkdir()
        write_checksummed(tmp_path / stage / "stage.json", {"settings": {"prior_objective.time_shift": shift}})
    assert read_run_summary(tmp_path).prior_objective.time_shift == 0.5


def test_export_refuses_a_head_of_another_demasker(trained, corpus, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(trained / "guided", out / "guided")
    assert run_stage("head", heading(corpus), Workspace(corpus, out, trained))
    networks = {
        name: out / path for name, path in (("demasker", "guided/model/demasker"), ("causal_head", "head"))
    }
    _check_head(out, networks)
    with pytest.raises(ValueError, match="was trained for another demasker: train it again"):
        _check_head(out, networks | {"demasker": out / "guided" / "model" / "encoder"})


def test_a_head_of_another_model_leaves_the_operations_of_the_run_as_they_were(trained, corpus, tmp_path):
    out, exported = tmp_path / "run", tmp_path / "exported"
    shutil.copytree(trained, out)
    shutil.copytree(trained / "guided" / "model", exported)
    before = flops_of_run(read_record(out), Shapes.of(tiny_preset(corpus)))
    assert run_stage("head", heading(corpus, head_of=exported), Workspace(corpus, out, out))
    after = flops_of_run(read_record(out), Shapes.of(tiny_preset(corpus)))
    assert after == before | {"head": after["head"]}


def test_a_head_inherits_the_operations_of_its_model_and_not_of_the_run_beside_it(trained, corpus, tmp_path):
    run, other = heading(corpus), tmp_path / "other"
    longer = replace(run, guided_loop=replace(run.guided_loop, num_steps=25))
    assert run_stage("guided", longer, Workspace(corpus, other, trained))
    alone, beside = Workspace(corpus, tmp_path, tmp_path), Workspace(corpus, tmp_path, trained)
    inside = replace(run, head_of=other / "guided" / "model")
    assert inherited_flops("head", inside, beside) == inherited_flops("head", inside, alone)
    shutil.copytree(other / "guided" / "model", tmp_path / "exported")
    exported = replace(run, head_of=tmp_path / "exported")
    assert inherited_flops("head", exported, alone) == {"base": None, "guided": None}
    assert inherited_flops("head", exported, beside) == inherited_flops("head", run, beside)


def test_a_head_of_another_model_resumes_whatever_the_run_trains_meanwhile(trained, corpus, tmp_path):
    run = heading(corpus, head_of=trained / "guided" / "model")
    workspace = Workspace(corpus, tmp_path, tmp_path)
    assert not run_stage("head", run, workspace, max_minutes=1e-9)
    shutil.copytree(trained / "guided", tmp_path / "guided")
    assert run_stage("head", run, workspace, resume=True)


def test_a_run_without_stage_guided_is_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match="train stage guided first"):
        run_stage("head", heading(corpus), Workspace(corpus, tmp_path, tmp_path))


def test_a_stage_takes_its_settings_from_the_run(trained, corpus):
    run = heading(corpus, head_objective=HeadObjective(whole_rate=0.7))
    stage, loop = head_stage(run, Workspace(corpus, trained, trained))
    assert isinstance(stage, HeadStage)
    assert (stage.objective, stage.num_prior_registers, loop) == (run.head_objective, 4, run.head_loop)
    assert np.isfinite(stage.loss(0, range(4)).item())
