"""How the second model is measured: its protocol, values by length, targets, and the cost."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from crocodil.models.demasker import DemaskerConfig
from crocodil.models.llada import LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoderConfig
from crocodil.reproduce.experiments import targets
from crocodil.reproduce.experiments.comparison import most_calls, own_best_calls, speedup_tables
from crocodil.reproduce.experiments.frontiers import comparable
from crocodil.reproduce.experiments.quality import display_name
from crocodil.reproduce.figures import COLOURS, MARKERS
from crocodil.reproduce.fixed_protocol import keep_protocol, kept_targets, read_protocol
from crocodil.reproduce.measuring_cost import Estimator, Shapes, rows_on_valid, total
from crocodil.reproduce.protocol import FULL
from crocodil.reproduce.store import read_stores, write_conditions

FILE = Path(__file__).parent.parent / "results" / "second" / "protocol.json"
PAPER = "the paper's, a quarter"
WITHIN = f"{PAPER}: conwithindisc"
NUM_CANDIDATES = 21  # of every method
DIGEST = "a21610f64f88"  # of the file, which may not change any more


@pytest.fixture(scope="module")
def fixed():
    return read_protocol(FILE)[0]


@pytest.fixture(scope="module")
def shapes():
    """The networks of the second model."""
    attention = {"num_heads": 9, "num_kv_heads": 3, "mlp_width": 1536, "rope_theta": 100_000.0}
    backbone = LLaDAConfig(vocab_size=12_288, width=576, num_layers=16, mask_id=0, eos_id=2, pad_id=3, **attention)
    encoder = RegisterEncoderConfig(
        vocab_size=12_288, width=576, num_layers=4, head_width=64, end_id=2, num_registers=64, register_width=64,
        **attention,
    )  # fmt: skip
    prior = RegisterDenoiserConfig(num_registers=16, register_width=64, width=576, num_layers=16, num_heads=9)
    demasker = DemaskerConfig(backbone=backbone, num_registers=64, register_width=64)
    return Shapes(demasker, encoder, prior, replace(prior, condition_width=64, condition_length=64))


# ---------------------------------------------------------------- the protocol of the second model


def test_the_protocol_has_not_changed_since_its_date():
    assert read_protocol(FILE)[1].startswith(DIGEST)


def test_the_protocol_gives_every_method_equally_many_candidates_and_the_base_its_own_guidance(fixed):
    protocol = fixed.protocol
    assert fixed.date == "2026-11-19"
    assert all(getattr(fixed.targets, name) == value for name, value in asdict(protocol.aims).items())
    counts = {len(protocol.candidates(guided=guided)) for guided in (False, True)}
    counts |= {len(protocol.candidates(guided=True, compared=name)) for name in protocol.compared}
    assert counts == {NUM_CANDIDATES}
    of_base = protocol.candidates(guided=False)
    assert all(
        len({one[name] for one in of_base}) > 1
        for name in ("temperature", "top_p", "rule", "corrector", "pace", "crop")
    )
    of_paper = protocol.candidates(guided=True, compared=PAPER)
    assert {(one["rule"], one["prior_steps"], one["refresh_steps"]) for one in of_paper} == {
        ("confidence", 128, 32)
    }
    assert (protocol.num_samples, protocol.num_swept) == (1000, 256)


def test_the_second_model_is_measured_in_about_twenty_gpu_minutes_for_each_half(fixed, shapes):
    costs = {length: Estimator(shapes, length).experiments(fixed.protocol) for length in (256, 512, 1024)}
    seconds = [total(list(some.values())).seconds for some in costs.values()]
    assert 1200 < seconds[0] < 1400
    assert 1000 < seconds[1] + seconds[2] < 1200
    page = (Path(__file__).parent.parent / "docs" / "evaluation.md").read_text()
    for name in ("sweep", "generation", "seconds"):
        cells = [f"{some[name].seconds:,.0f}" for some in costs.values()]
        assert f"| {name} | {' | '.join(cells)} |" in page
    assert f"| all | {' | '.join(f'{value:,.0f}' for value in seconds)} |" in page


def test_an_estimate_counts_every_row_of_the_sweep_once(fixed, shapes):
    rows = list(rows_on_valid(fixed.protocol, 256))
    finals = [row for row in rows if row[1] == fixed.protocol.final_calls]
    own = 3 * len(fixed.protocol.swept_calls) * NUM_CANDIDATES
    assert len(rows) == own + 2 * 2 * NUM_CANDIDATES + len(finals)
    assert [row[0] for row in finals] == ["base"] * fixed.protocol.num_finalists
    assert list(rows_on_valid(fixed.protocol.at(512), 512)) == []  # settings are chosen at 256
    few = Estimator(shapes, 256).row("base", 16, {}, 100)
    many = Estimator(shapes, 256).row("base", 32, {}, 100)
    assert many.flops - few.flops == pytest.approx(100 * 16 * 35.03e9, rel=1e-3)  # a call has 35 GFLOP


def test_values_may_differ_by_length_but_not_what_a_method_may_choose_from():
    protocol = replace(FULL, chosen_at=256, by_length={"512": {"num_samples": 300, "max_base_calls": 128}})
    assert protocol.at(256).num_samples == 1000
    assert protocol.at(512).num_samples == 300
    assert protocol.at(512).calls(512, guided=False)[-1] == 128
    assert protocol.at(512).calls(512, guided=True) == FULL.calls(512, guided=True)
    # As many tokens per call as at the length where settings are chosen.
    assert [protocol.swept_for(calls, 1024) for calls in (8, 64, 256, 512)] == [16, 16, 64, 128]
    assert [protocol.swept_for(calls, 256) for calls in (8, 64, 256)] == [16, 64, 128]
    for changes, message in (
        ({"by_length": {"long": {}}}, "lengths as names, such as '512', not 'long'"),
        ({"by_length": {"512": {"num_samples": 0}}}, "length 512: num_samples should be greater than"),
        ({"by_length": {"512": {"name": "x"}}}, "name is the same at all lengths"),
        ({"compared": {"other": ({"top_p": (0.9, 1.0)},)}}, "base has 20 candidates, other has 40"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(FULL, **changes)


# ---------------------------------------------------------------- rows


def test_lengths_may_be_measured_one_by_one(tmp_path):
    def lengths(*conditions):
        write_conditions(tmp_path, conditions)
        return [store.conditions["length"] for store in read_stores(tmp_path)]

    short, long = ({"length": length, "model": {"base": length}, "seed": 0} for length in (256, 512))
    assert lengths(long) == [512]
    assert lengths(short) == [256, 512]
    assert lengths({**short, "model": {}}) == [256, 512]
    assert lengths({**short, "seed": 1}) == [256]  # another run


def test_a_folder_of_results_keeps_its_protocol(fixed, tmp_path):
    keep_protocol(FILE, tmp_path / "out")
    keep_protocol(FILE, tmp_path / "out")
    digest = read_protocol(FILE)[1]
    assert kept_targets(tmp_path / "out", [{"protocol": digest}]) == fixed.targets
    assert kept_targets(tmp_path / "out", [{"protocol": digest}, {}]) is None  # a row that it did not fix
    assert kept_targets(tmp_path, [{"protocol": digest}]) is None
    replace(fixed, seed=1).save(tmp_path / "other.json")
    with pytest.raises(ValueError, match="test programs are measured by one protocol only"):
        keep_protocol(tmp_path / "other.json", tmp_path / "out")


def row(method, calls, mauve, **others):
    return {
        "method": method, "calls": calls, "length": 256, "mauve": mauve, "mauve_spread": 0.01,
        "mauve_pooled": mauve, "gen_ppl": 10.0, "gen_ppl_spread": 0.1, "entropy": 3.9, "distinct_2": 0.3,
        "parse_share": 0.5, "flop_nfe": float(calls), "nfe": float(calls), "seconds": None, **others,
    }  # fmt: skip


REAL = row("real", 0, 0.9, parse_share=0.7, distinct_2=0.35)
ROWS = [
    *(row("base", calls, mauve) for calls, mauve in ((16, 0.3), (64, 0.5), (256, 0.7))),
    row("conthendisc", 16, 0.75), row("conthendisc", 32, 0.76),
    row("conwithindisc", 16, 0.80, distinct_2=0.2), row("conwithindisc", 32, 0.82), row(WITHIN, 16, 0.72),
]  # fmt: skip


def test_every_target_is_reported_reached_or_not_or_not_measured(fixed):
    results = {"generation": ROWS, "anchor": [REAL], "reference": [REAL]}
    found = {line.name: line for line in targets.lines(fixed.targets, results)}
    assert len(found) == 6 * 2 + 3 + 3
    assert found["ConWithinDisc: MAUVE"].reached
    assert found["ConWithinDisc: valid Python"].measured == "50% (real 70%)"
    assert [found[f"{who}: distinct-2"].reached for who in ("ConThenDisc", "ConWithinDisc")] == [True, False]
    assert found["speed-up by FLOPs, length 256"].reached  # 256 calls against 16
    assert found["speed-up by FLOPs, length 512"].reached is None
    above = found["MAUVE, ConWithinDisc minus ConThenDisc at equal cost"]
    assert (above.measured, above.reached) == ("+0.055 at 256", False)  # at one length, two are wanted
    assert found["CER of copies, one block"].reached is None
    shown = targets.show(fixed.targets, results)
    assert "Reached: 12 of 18" in str(shown.blocks[0])
    assert len(shown.blocks[1].body) == len(found)


def test_methods_of_compared_models_have_speedups_and_frontiers_of_their_own():
    names = [line[0] for line in speedup_tables(ROWS, REAL)[0].body]
    assert names == ["ConThenDisc", "ConWithinDisc", f"{PAPER}: ConWithinDisc"]
    assert display_name(WITHIN) == f"{PAPER}: ConWithinDisc"
    assert set(comparable(ROWS)) == {16}  # at 32 calls the base is missing, at 64 all others
    assert len({(colour, marker) for colour, marker in zip(2 * COLOURS, 2 * MARKERS, strict=False)}) == 10


def test_a_base_that_was_not_measured_at_one_call_per_token_has_no_second_table():
    rows = [one for one in ROWS if one["calls"] < 256]
    assert most_calls(rows) == own_best_calls(rows, REAL) == 64
    assert [len(speedup_tables(some, REAL)) for some in (ROWS, rows)] == [2, 1]
