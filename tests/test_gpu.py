"""What must hold on an accelerator too: `python -m pytest -m gpu`."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from tiny import CONDITIONAL, MASK
from tiny_judges import PROGRAMS, save_language_model
from tiny_play import tiny_pipe

from crocodil import Base, Crocodil
from crocodil.checkpoints.llada import load_llada
from crocodil.judges import LanguageModel
from crocodil.models.denoiser_blocks import Attention
from crocodil.processes.reveal import AboveThreshold, AtRandom, MostConfident, Remask, RemaskByConfidence
from crocodil.runtime import graphs
from crocodil.runtime.graphs import Recorder
from crocodil.sampling.algorithms import con_then_disc, con_within_disc
from crocodil.sampling.call import PLAIN, Engine
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.sampling.guidance import Guided
from crocodil.sampling.register_draw import Conditions, Prior, draw_registers
from crocodil.sampling.state import Canvas
from crocodil.seeding import Streams
from crocodil.training.journal import Journal, StepResult
from crocodil.training.work import Work

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here"),
]


def test_streams_are_the_same_on_both_devices():
    here, there = (Streams.of("x", samples=range(8), device=device).at("y", 3) for device in ("cpu", "cuda"))
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(here.uniform(1001, dtype=dtype), there.uniform(1001, dtype=dtype).cpu())
    assert torch.allclose(here.normal(33, 7), there.normal(33, 7).cpu(), atol=1e-5)
    assert torch.equal(here.integers(1, 128), there.integers(1, 128).cpu())


@pytest.mark.parametrize("num_keys", [16, 64])
def test_gradients_of_the_denoiser_are_finite_where_all_logits_are_low(num_keys):
    attention = Attention(width=256, num_heads=2).cuda().bfloat16()
    tokens = torch.zeros(20, 16, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.nn.init.constant_(attention.query.bias, 4.0)
    keys = torch.full((1, 2, num_keys, 128), -4.0, device="cuda", dtype=torch.bfloat16)  # logits of -181
    keys_values = torch.stack([keys, torch.randn_like(keys)]).requires_grad_()
    attention(tokens, keys_values).float().square().sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (tokens, keys_values))


def test_the_networks_compute_the_same_on_both_devices():
    tokens, registers, prefix_length = tiny.programs(4, 16), tiny.bank(4), torch.tensor([0, 2, 4, 6])
    hidden = tiny.streams(4).uniform(16) < 0.5
    time = tiny.streams(4, "time").uniform(6)
    for network, inputs in (
        (tiny.llada(), {"tokens": tokens, "attention_mask": ~hidden}),
        (tiny.demasker(), {"noisy_tokens": tokens, "registers": registers, "prefix_length": prefix_length}),
        (tiny.encoder(), {"tokens": tokens, "hidden": hidden}),
        (
            tiny.denoiser(CONDITIONAL),
            {"noisy_registers": registers, "diffusion_time": time, "condition": registers},
        ),
    ):
        here = network(**inputs)
        there = network.cuda()(**{name: value.cuda() for name, value in inputs.items()}).cpu()
        assert torch.allclose(here, there, atol=1e-4)
        half = network.bfloat16()(**{name: value.cuda() for name, value in inputs.items()}).cpu().float()
        assert (here - half).abs().max() < 0.1 * here.abs().max()


@pytest.mark.parametrize(("crop", "in_turn"), [(None, "no"), (2, "no"), (None, "new"), (2, "all")])
def test_con_then_disc_draws_the_same_samples_on_both_devices(crop, in_turn):
    def sample(device):
        denoiser, demasker = tiny.denoiser().to(device), tiny.demasker().to(device)
        head = tiny.causal_head().to(device)
        return con_then_disc(
            lambda streams: draw_registers(Prior.of(denoiser), Drawing(), num_steps=8, streams=streams),
            Guided(demasker, head=head),
            Canvas.empty(32, 16, mask_id=MASK, eos_id=tiny.EOS, device=device),
            Decoding(calls=4, rule="random", temperature=1.0, crop=crop, in_turn=in_turn),
            streams=Streams.of("x", samples=range(32), device=device),
        ).tokens.cpu()

    assert (sample("cpu") == sample("cuda")).float().mean() > 0.99


@pytest.mark.parametrize(("crop", "in_turn"), [(None, "no"), (2, "no"), (None, "new")])
@pytest.mark.parametrize(
    "rule", [MostConfident(), AtRandom(), AboveThreshold(0.1), Remask(), RemaskByConfidence()]
)
def test_recorded_calls_give_the_same_samples(rule, crop, in_turn):
    demasker = tiny.demasker(replace(tiny.DEMASKER, across_text=True)).cuda()
    denoiser = tiny.denoiser(replace(CONDITIONAL, self_conditioned=True)).cuda()
    head = tiny.causal_head().cuda()
    how = Decoding(calls=8, rule=rule, temperature=1.0, top_p=0.9, crop=crop, in_turn=in_turn)
    prior, drawing = Prior.of(denoiser), Drawing(pag_scale=1.0)

    @torch.no_grad()
    def condition_kv(streams):
        return denoiser.cross_attention_kv(streams.at("condition").normal(6, 16))

    def sample(engine, seed):
        return con_within_disc(
            lambda streams: draw_registers(prior, drawing, num_steps=8, streams=streams, engine=engine),
            lambda tokens, registers, streams: draw_registers(
                prior,
                drawing,
                num_steps=8,
                conditions=Conditions(condition_kv(streams)),
                streams=streams,
                engine=engine,
            ),
            Guided(demasker, head=head),
            Canvas.empty(32, 16, mask_id=MASK, eos_id=tiny.EOS, device="cuda"),
            how,
            streams=Streams.of(seed, samples=range(32), device="cuda"),
            engine=engine,
        )

    recorded = Engine(Recorder(torch.device("cuda")))
    for seed in (1, 2):  # recorded with the first, only replayed with the second
        plain, fast = sample(PLAIN, seed), sample(recorded, seed)
        assert (plain.tokens == fast.tokens).float().mean() > 0.99
        assert plain.costs == fast.costs
        assert torch.allclose(plain.registers, fast.registers, atol=1e-3)


def test_a_step_that_is_recorded_in_inference_mode_reads_each_input():
    recorder = Recorder(torch.device("cuda"))
    for value in (1.0, 2.0, 3.0):  # recorded with the first, only replayed with the others
        with torch.inference_mode():
            given = torch.full((3,), value, device="cuda")
            assert (recorder(lambda x: 2 * x, "twice", (given,)) == 2 * value).all()
    outside = torch.full((3,), 4.0, device="cuda")
    assert (recorder(lambda x: 2 * x, "twice", (outside,)) == 8).all()
    outside += 1
    assert (recorder(lambda x: 2 * x, "twice", (outside,)) == 10).all()


def test_a_demasker_whose_registers_shift_its_text_is_recorded():
    """Its positions must not come from the host (decision D16)."""
    demasker = tiny.demasker(replace(tiny.DEMASKER, literal_positions=True))
    tokens, bank = tiny.programs(2, 8), tiny.bank(2)
    with torch.no_grad():
        here = demasker(tokens, bank)
        there = demasker.cuda()
        recorded = Recorder(torch.device("cuda"))(there, "demask", (tokens.cuda(), bank.cuda()))
    assert torch.allclose(here, recorded.cpu(), atol=1e-4)


def test_a_model_generates_the_same_on_both_devices(tmp_path):
    folder = tmp_path / "model"
    tiny_pipe().save_pretrained(folder)
    here, there = (
        Crocodil.from_pretrained(folder, device=device, dtype=torch.float32) for device in ("cpu", "cuda")
    )
    for seed in (1, 2):  # recorded with the first, only replayed with the second
        ours, theirs = (pipe.generate(8, method="conwithindisc", calls=6, seed=seed) for pipe in (here, there))
        assert (ours.tokens == theirs.tokens.cpu()).float().mean() > 0.99
        assert ours.costs == theirs.costs


@pytest.mark.parametrize("script", ["compiled_reveal.py", "compiled_priors.py", "compiled_draws.py"])
def test_compiled_code_computes_the_same(script):
    script = Path(__file__).parent / script
    done = subprocess.run([sys.executable, str(script), "cuda"], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "the same", done.stderr[-2000:]


def test_weights_load_straight_onto_the_device(fixtures):
    assert {str(p.device) for p in load_llada(fixtures / "llada-tiny", device="cuda").parameters()} == {"cuda:0"}


def test_a_base_answers_prompts_of_several_lengths_the_same_on_both_devices(llada_folder, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_RECORDINGS", 3)  # recordings are forgotten on the way
    here, there = (
        Base.from_pretrained(llada_folder, device=device, dtype=torch.float32) for device in ("cpu", "cuda")
    )
    for knobs in ({"calls": 4}, {"threshold": 0.05, "block_size": 8}, {"calls": 4, "guidance": 2.0}):
        ours, theirs = (
            base.generate(["one", "a longer one", "two"], length=16, **knobs) for base in (here, there)
        )
        assert torch.equal(ours.tokens, theirs.tokens.cpu())
        assert (ours.texts, ours.costs) == (theirs.texts, theirs.costs)


def test_a_judge_says_in_bfloat16_what_it_says_in_float32(tmp_path):
    folder = save_language_model(tmp_path)
    here, there = (LanguageModel.load(folder, device=device) for device in ("cpu", "cuda"))
    for ours, theirs in zip(here.scores(PROGRAMS), there.scores(PROGRAMS), strict=True):
        assert ours.nats == pytest.approx(theirs.nats, rel=0.05)
        assert ours[1:] == theirs[1:]
    for ours, theirs in zip(here.features(PROGRAMS), there.features(PROGRAMS), strict=True):
        assert (theirs.device.type, theirs.dtype) == ("cpu", torch.float32)
        assert torch.cosine_similarity(ours, theirs).min() > 0.95
    assert here.fingerprint != there.fingerprint


def test_a_step_is_logged_while_the_next_one_runs():
    rows = []
    journal = Journal("base", Work(1, 1.0), 1, 1.0, rows.append, lambda *_: None)
    results = [
        StepResult(torch.full((1,), loss, device="cuda"), torch.ones((), device="cuda"), 0.1)
        for loss in (1.5, 2.5)
    ]
    journal.add(0, results[0])
    torch.cuda._sleep(2_000_000_000)  # about a second of work
    ended = torch.cuda.Event()
    ended.record()
    journal.add(1, results[1])
    assert not ended.query()
    with journal.paused():
        assert [row["loss"] for row in rows] == [1.5, 2.5]
    assert rows[1]["step_s"] > 0.1  # the time on the GPU, although the host only waited for the end of it
