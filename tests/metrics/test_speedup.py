from dataclasses import replace
from functools import partial

import pytest

from crocodil.metrics import (
    Measured,
    QualityPoint,
    own_best,
    speedup_at_matched_quality,
)

REAL_ENTROPY = 4.0


def point(calls, mauve, gen_ppl, entropy=3.9, *, extra=0.0, spread=(0.02, 1.0)):
    return QualityPoint(
        calls=calls,
        nfe=calls + extra,
        mauve=Measured(mauve, spread[0]),
        gen_ppl=Measured(gen_ppl, spread[1]),
        entropy=entropy,
    )


BASE = [point(16, 0.05, 90), point(64, 0.3, 40), point(256, 0.55, 24), point(512, 0.62, 19.4)]


def speedup(method, base=BASE, calls=512, **real):
    return speedup_at_matched_quality(base, method, calls=calls, real_entropy=REAL_ENTROPY, **real)


def test_the_papers_example_is_13_times():
    within = [point(8, 0.3, 30, extra=8), point(32, 0.6, 14.3, extra=8), point(128, 0.7, 13, extra=8)]
    found = speedup(within)
    assert found is not None
    assert found.factor == pytest.approx(512 / 40)
    assert (found.base, found.method) == (BASE[3], within[1])


def test_the_cheapest_match_counts_in_whatever_order_points_come():
    method = [point(256, 0.7, 15), point(64, 0.65, 18), point(128, 0.68, 16)]
    assert speedup(method).factor == speedup(method[::-1]).factor == 8


def test_methods_need_only_match_the_gen_ppl_of_real_text():
    base = [point(512, 0.5, 4.0, entropy=2.8, spread=(0.02, 0.1))]  # repeats itself
    method = [point(32, 0.6, 11.5, entropy=3.5), point(64, 0.6, 10.0, entropy=3.5)]
    ask = partial(speedup_at_matched_quality, base, method, calls=512, real_entropy=REAL_ENTROPY)
    assert ask() is None
    assert ask(real_gen_ppl=Measured(11.0, 0.4)).factor == 8
    assert ask(real_gen_ppl=Measured(11.0, 0.6)).factor == 16
    assert ask(real_gen_ppl=Measured(2.0, 0.1)) is None


def test_the_cost_of_the_prior_counts():
    assert speedup([point(32, 0.7, 15)]).factor == 16
    assert speedup([point(32, 0.7, 15, extra=32)]).factor == 8


@pytest.mark.parametrize(
    "worse",
    [
        point(32, 0.59, 15),  # MAUVE
        point(32, 0.7, 20.5),  # Gen-PPL
        point(32, 0.7, 2.0, entropy=2.0),  # repeats itself: Gen-PPL is superb
        point(32, 0.7, 15, entropy=4.2),  # more random than real text
    ],
    ids=["MAUVE", "Gen-PPL", "collapsed", "scattered"],
)
def test_a_point_that_is_worse_in_one_thing_does_not_match(worse):
    assert speedup([worse]) is None
    assert speedup([worse, point(256, 0.7, 15)]).factor == 2


def test_a_difference_within_the_spread_of_the_base_does_not_count():
    assert speedup([point(32, 0.601, 20.3)]).factor == 16
    certain = [*BASE[:3], replace(BASE[3], mauve=Measured(0.62, 0.0), gen_ppl=Measured(19.4, 0.0))]
    assert speedup([point(32, 0.601, 20.3)], certain) is None
    assert speedup([point(32, 0.62, 19.4)], certain).factor == 16


def test_a_noisy_point_gains_nothing():
    assert speedup([point(32, 0.5, 30, spread=(1.0, 100.0))]) is None


def test_the_base_matches_itself_and_shows_where_it_stops_improving():
    assert speedup(BASE).factor == 1
    saturated = [point(128, 0.61, 19.9), *BASE]
    assert speedup(saturated, saturated).factor == 4


def best_calls(base, **real):
    return own_best(base, calls=512, real_entropy=REAL_ENTROPY, **real).calls


def test_a_base_that_keeps_improving_is_best_at_one_call_per_token():
    assert best_calls(BASE) == 512


def test_the_best_of_the_base_is_at_the_fewest_calls_that_are_as_good_by_all_measures():
    saturated = [*BASE[:2], point(128, 0.61, 19.9), *BASE[2:]]
    assert best_calls(saturated) == 128
    assert best_calls(saturated[::-1]) == 128
    method = [point(32, 0.65, 15)]
    assert speedup(method, saturated, calls=128).factor == 4
    assert speedup(method, saturated).factor == 16  # as in the paper: a factor of 4 belongs to the base
    assert speedup(saturated, saturated, calls=128).factor == 1


def test_a_base_that_gets_worse_with_more_calls_is_best_before_that():
    """As ours at 512 tokens: 0.28, 0.38 and 0.33 at 128, 256 and 512 calls."""
    spread = (0.04, 0.1)
    base = [point(128, 0.30, 4.2, 2.84, spread=spread), point(256, 0.38, 3.5, 2.82, spread=spread)]
    base = [*base, point(512, 0.33, 3.2, 2.78, spread=spread)]
    real = Measured(9.0, 0.1)
    assert best_calls(base, real_gen_ppl=real) == 256  # 128 calls match the last point, and not the best
    method = [point(8, 0.31, 8.0, 3.3), point(16, 0.345, 8.0, 3.3)]
    found = speedup(method, base, calls=256, real_gen_ppl=real)
    assert (found.factor, found.method.calls) == (16, 16)


def test_a_point_that_matches_the_best_of_the_base_counts_though_it_does_not_match_one_call_per_token():
    saturated = [point(64, 0.64, 20.9), point(256, 0.65, 20.0), BASE[3]]  # 20.9 is within 1 of 20.0, not of 19.4
    assert speedup(saturated[:1], saturated) is None
    assert best_calls(saturated) == 64


def test_few_calls_of_high_mauve_and_poor_fluency_are_not_the_best_of_the_base():
    assert best_calls([point(32, 0.7, 60), *BASE]) == 512
    assert best_calls([point(32, 0.7, 15, entropy=2.0), *BASE]) == 512  # repeats itself


def test_the_base_must_have_been_measured_there():
    with pytest.raises(ValueError, match="not measured at 512 calls"):
        best_calls(BASE[:3])
    with pytest.raises(ValueError, match=r"not measured at 512 calls, only at \[16, 64, 256\]"):
        speedup(BASE, BASE[:3])


def test_a_spread_needs_several_runs():
    assert Measured.over([1.0, 2.0, 3.0]) == (2.0, 1.0)
    with pytest.raises(ValueError, match="at least two runs"):
        Measured.over([1.0])
