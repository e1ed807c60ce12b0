import math

import pytest
import tiny
import torch
from tiny import EOS, MASK, VOCAB

from crocodil.processes.categorical import CHUNK, _invert, draw_tokens, propose_tokens
from crocodil.processes.masking import (
    demasking_loss,
    mask_prob_at,
    mask_tokens,
    reverse_step,
    sample_given,
    stratified_times,
)
from crocodil.processes.reveal import (
    AboveThreshold,
    AtRandom,
    MostConfident,
    NoisyConfidence,
    Remask,
    RemaskByConfidence,
    RevealStep,
    Revise,
    before_given_text,
    fill_after_eos,
    highest,
    hold_back_eos,
)

KEEPING = [MostConfident(), AtRandom(), NoisyConfidence(), AboveThreshold(0.3)]
RULES = [*KEEPING, Remask(), RemaskByConfidence()]


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("prob", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_masking_frequency_is_the_mask_probability(prob):
    tokens = tiny.programs(400, 100)
    noisy, hidden = mask_tokens(tokens, torch.full((400,), prob), mask_id=MASK, streams=tiny.streams(400))
    assert hidden.float().mean().item() == pytest.approx(prob, abs=0.008)
    assert torch.equal(noisy == MASK, hidden)
    assert torch.equal(noisy[~hidden], tokens[~hidden])


def test_tokens_are_hidden_independently_of_each_other():
    hidden = mask_tokens(
        tiny.programs(20_000, 6), torch.full((20_000,), 0.3), mask_id=MASK, streams=tiny.streams(20_000)
    ).hidden
    correlation = torch.corrcoef(hidden.float().T) - torch.eye(6)
    assert correlation.abs().max() < 0.03


def test_what_is_given_is_never_hidden_and_is_a_prefix_a_suffix_or_both():
    given = sample_given(40, 0.5, streams=tiny.streams(3000))
    some = given.any(dim=1)
    assert some.float().mean().item() == pytest.approx(0.5, abs=0.03)
    runs = (given[:, 1:] != given[:, :-1]).sum(dim=1)
    assert runs.max() == 2  # never more than one hidden stretch
    starts, ends = given[:, 0] & ~given[:, -1], given[:, -1] & ~given[:, 0]
    both = given[:, 0] & given[:, -1]
    for kind in (starts, ends, both):
        assert kind[some].float().mean() > 0.2
    hidden = mask_tokens(
        tiny.programs(3000, 40), torch.ones(3000), mask_id=MASK, streams=tiny.streams(3000), given=given
    ).hidden
    assert torch.equal(hidden, ~given)


def test_stratified_times_cover_the_unit_interval_evenly_whatever_the_split_into_ranks():
    times = stratified_times(torch.arange(8), batch_size=8, shift=0.3)
    assert torch.allclose(times.sort().values.diff(), torch.tensor(1 / 8))
    assert torch.equal(times[4:], stratified_times(torch.arange(4, 8), batch_size=8, shift=0.3))
    assert ((times >= 0) & (times < 1)).all()


def test_the_mask_probability_runs_from_lladas_floor_to_one():
    assert mask_prob_at(torch.tensor([0.0, 0.5, 1.0])).tolist() == pytest.approx([1e-3, 0.5005, 1.0])


def test_masking_then_reversing_to_an_earlier_time_is_masking_at_that_time():
    tokens, count = tiny.programs(2000, 50), 2000
    late, early = torch.full((count,), 0.8), torch.full((count,), 0.3)
    noisy, hidden = mask_tokens(tokens, late, mask_id=MASK, streams=tiny.streams(count, "forward"))
    found = reverse_step(
        noisy,
        tokens,
        mask_prob=late,
        next_mask_prob=early,
        mask_id=MASK,
        streams=tiny.streams(count, "reverse"),
    )
    assert (found == MASK).float().mean().item() == pytest.approx(0.3, abs=0.006)
    assert torch.equal(found[~hidden], tokens[~hidden])
    assert ((found == tokens) | (found == MASK)).all()


@pytest.mark.parametrize("prob", [0.05, 0.5, 1.0])
def test_the_loss_weight_makes_the_loss_of_a_guesser_log_v_at_any_mask_probability(prob):
    tokens, mask_prob = tiny.programs(4000, 50), torch.full((4000,), prob)
    hidden = mask_tokens(tokens, mask_prob, mask_id=MASK, streams=tiny.streams(4000)).hidden
    guess = torch.zeros(int(hidden.sum()), VOCAB)
    loss = demasking_loss(guess, tokens, hidden, mask_prob)
    assert loss.item() == pytest.approx(math.log(VOCAB), rel=0.03)


def test_the_loss_counts_hidden_positions_only_and_divides_by_all():
    tokens = torch.tensor([[3, 1], [2, 0]])
    hidden = torch.tensor([[True, False], [True, True]])
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    log_prob = logits.log_softmax(dim=1)
    expected = -(log_prob[0, 3] / 0.5 + log_prob[1, 2] / 0.25 + log_prob[2, 0] / 0.25) / 4
    assert torch.allclose(demasking_loss(logits, tokens, hidden, torch.tensor([0.5, 0.25])), expected)


def test_a_visible_token_that_is_read_has_weight_one():
    tokens, hidden = torch.tensor([[3, 1, 4]]), torch.tensor([[True, False, False]])
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    log_prob = logits.log_softmax(dim=1)
    read = torch.tensor([[True, True, False]])
    expected = -(log_prob[0, 3] / 0.25 + log_prob[1, 1]) / 3
    assert torch.allclose(demasking_loss(logits, tokens, hidden, torch.tensor([0.25]), read=read), expected)


def test_the_loss_of_an_answer_is_that_of_the_answer_alone_whatever_the_length_of_its_prompt():
    tokens, mask_prob = torch.tensor([[7, 3, 1, 4, 7]]), torch.tensor([0.25])
    is_answer = torch.tensor([[False, True, True, True, False]])
    hidden = torch.tensor([[False, True, False, False, False]])
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    alone = demasking_loss(logits, tokens[:, 1:4], hidden[:, 1:4], mask_prob, read=is_answer[:, 1:4])
    placed = demasking_loss(logits, tokens, hidden, mask_prob, read=is_answer, is_answer=is_answer)
    assert torch.allclose(placed, alone)


# ---------------------------------------------------------------- proposals


def test_the_mask_is_never_proposed_even_where_it_is_the_best_guess():
    logits = torch.zeros(500, VOCAB)
    logits[:, MASK] = 50
    for temperature in (0.0, 1.0, 100.0):
        proposal = propose_tokens(logits, mask_id=MASK, temperature=temperature, streams=tiny.streams(500))
        assert (proposal.tokens != MASK).all()
        assert torch.allclose(proposal.log_prob, torch.tensor(-math.log(VOCAB - 1)))


def test_confidences_of_half_precision_logits_do_not_saturate():
    logits = torch.zeros(2, VOCAB, dtype=torch.bfloat16)
    logits[0, 0], logits[1, 0] = 14, 16
    assert logits.softmax(dim=1)[:, 0].tolist() == [1, 1]
    log_prob = propose_tokens(logits, mask_id=MASK).log_prob
    assert log_prob.dtype == torch.float32
    assert log_prob[0] < log_prob[1] < 0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_from_the_tempered_softmax(temperature):
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0])
    drawn = draw_tokens(logits.expand(20_000, -1), temperature=temperature, streams=tiny.streams(20_000))
    frequency = torch.bincount(drawn, minlength=4) / 20_000
    assert torch.allclose(frequency, (logits / temperature).softmax(dim=0), atol=0.012)


def test_tokens_are_drawn_evenly_from_a_vocabulary_of_many_stretches():
    size, count = 3 * CHUNK + 10, 60_000
    drawn = draw_tokens(torch.zeros(count, size), temperature=1.0, streams=tiny.streams(count))
    counts = torch.bincount(drawn, minlength=size)
    assert len(counts) == size
    chi_square = ((counts - count / size) ** 2 / (count / size)).sum().item()
    assert abs(chi_square - (size - 1)) < 4 * math.sqrt(2 * (size - 1))


def test_a_rare_token_keeps_its_probability_and_an_impossible_one_is_never_drawn():
    logits = torch.full((200_000, 2 * CHUNK), -torch.inf)
    logits[:, 5], logits[:, 300] = 0.0, math.log(1e-4)
    drawn = draw_tokens(logits, temperature=1.0, streams=tiny.streams(200_000))
    assert set(drawn.tolist()) == {5, 300}
    assert (drawn == 300).sum().item() == pytest.approx(20, abs=15)


@pytest.mark.parametrize("place", [0.0, 1e-300, 0.5, 1 - 2**-53])
def test_no_place_falls_on_what_has_no_weight(place):
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]], dtype=torch.float64)
    found, within = _invert(weights, torch.tensor([place], dtype=torch.float64))
    assert found.item() in (1, 3)
    assert 0 <= within.item() <= 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_draw_tokens_inside_the_vocabulary(value):
    logits = torch.zeros(64, CHUNK + 44)
    logits[:32, 299] = value
    logits[32:] = value
    for top_p in (1.0, 0.5):
        drawn = draw_tokens(logits, temperature=1.0, top_p=top_p, streams=tiny.streams(64))
        assert (drawn < CHUNK + 44).all()


def test_drawing_survives_logits_whose_exponential_overflows():
    logits = torch.tensor([[2000.0, 0.0, 1999.0]]).expand(2000, -1)
    drawn = draw_tokens(logits, temperature=1.0, streams=tiny.streams(2000))
    assert (drawn != 1).all()
    assert (drawn == 0).float().mean().item() == pytest.approx(1 / (1 + math.exp(-1)), abs=0.03)


def test_a_row_draws_the_same_token_whatever_other_rows_there_are():
    logits, streams = tiny.streams(200, "logits").normal(VOCAB), tiny.streams(200)
    together = draw_tokens(logits, temperature=1.0, streams=streams)
    some = torch.tensor([3, 70, 150])
    assert torch.equal(together[some], draw_tokens(logits[some], temperature=1.0, streams=streams[some]))


@pytest.mark.parametrize(
    ("temperature", "top_p", "kept"), [(1.0, 0.6, [0]), (1.0, 0.7, [0, 2]), (4.0, 0.6, [0, 2])]
)
def test_top_p_draws_among_the_most_probable_of_the_tempered_distribution(temperature, top_p, kept):
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0])  # at temperature 1: 0.64, 0.09, 0.24, 0.03
    drawn = draw_tokens(logits.expand(4000, -1), temperature=temperature, top_p=top_p, streams=tiny.streams(4000))
    frequency = torch.bincount(drawn, minlength=4)[kept] / 4000
    assert torch.allclose(frequency, (logits[kept] / temperature).softmax(dim=0), atol=0.03)


def test_top_p_leaves_confidences_alone():
    logits, streams = tiny.streams(50, "logits").normal(VOCAB), tiny.streams(50)
    found = propose_tokens(logits, mask_id=MASK, temperature=1.0, top_p=0.01, streams=streams)
    greedy = propose_tokens(logits, mask_id=MASK)
    assert torch.equal(found.tokens, greedy.tokens)
    assert torch.equal(found.log_prob, greedy.log_prob)
    with pytest.raises(ValueError, match="top_p is a probability above 0, not 0"):
        propose_tokens(logits, mask_id=MASK, temperature=1.0, top_p=0.0, streams=streams)


def test_drawing_needs_streams_and_a_temperature_above_zero():
    logits = torch.zeros(2, VOCAB)
    with pytest.raises(ValueError, match="pass streams"):
        propose_tokens(logits, mask_id=MASK, temperature=1.0)
    with pytest.raises(ValueError, match="below 0"):
        propose_tokens(logits, mask_id=MASK, temperature=-1.0, streams=tiny.streams(2))


# ---------------------------------------------------------------- reveal rules


@pytest.mark.parametrize(
    ("hidden", "calls", "expected"),
    [(10, 4, [3, 3, 2, 2]), (512, 40, [13] * 32 + [12] * 8), (3, 5, [1, 1, 1, 0, 0])],
)
def test_the_split_over_calls_is_lladas(hidden, calls, expected):
    assert split_over_calls(hidden, calls) == expected


@pytest.mark.parametrize(
    ("hidden", "calls", "curve", "expected"),
    [
        (16, 4, 2.0, [1, 3, 5, 7]),  # squares are visible
        (64, 8, 2.0, [1, 3, 5, 7, 9, 11, 13, 15]),  # rounding errors reveal no token too many
        (512, 8, 3.0, [1, 7, 19, 37, 61, 91, 127, 169]),  # cubes
        (16, 4, 0.5, [8, 4, 3, 1]),  # square roots, rounded up
        (3, 5, 2.0, [1, 1, 1, 0, 0]),  # a call reveals a token while there are any
    ],
)
def test_a_curve_leaves_more_tokens_to_the_last_calls_or_to_the_first(hidden, calls, curve, expected):
    assert split_over_calls(hidden, calls, curve=curve) == expected


def split_over_calls(hidden, calls, **options):
    left, split = hidden, []
    for calls_left in range(calls, 0, -1):
        masked = torch.arange(hidden)[None] < left
        step = RevealStep(torch.zeros(1, hidden), masked, masked, calls_left, calls, tiny.streams(1), **options)
        split.append(int(step.quota()))
        left -= split[-1]
    assert left == 0
    return split


def step(log_prob, *, hidden=None, calls_left=2, calls_per_block=4, name="rule"):
    log_prob = torch.as_tensor(log_prob)
    is_open = torch.ones(log_prob.shape, dtype=torch.bool)
    hidden = is_open if hidden is None else torch.as_tensor(hidden)
    return RevealStep(log_prob, hidden, is_open, calls_left, calls_per_block, tiny.streams(len(log_prob), name))


def test_the_left_position_wins_a_tie():
    best = highest(torch.zeros(1, 6), among=torch.tensor([[0, 1, 1, 0, 1, 1]]).bool(), count=torch.tensor([2]))
    assert best.int().tolist() == [[0, 1, 1, 0, 0, 0]]


def test_most_confident_keeps_the_highest_probabilities_of_each_sample():
    shown = MostConfident()(step([[-3.0, -1.0, -2.0, -0.5], [-0.1, -0.2, -0.3, -0.4]]))
    assert shown.int().tolist() == [[0, 1, 0, 1], [1, 1, 0, 0]]


def test_confidence_with_no_noise_is_most_confident_and_with_much_noise_is_random():
    log_prob = -torch.arange(1.0, 9.0).expand(4000, -1)
    assert torch.equal(NoisyConfidence(0.0)(step(log_prob)), MostConfident()(step(log_prob)))
    frequency = NoisyConfidence(1e6)(step(log_prob)).float().mean(dim=0)
    assert torch.allclose(frequency, torch.tensor(0.5), atol=0.03)
    some = NoisyConfidence(1.0)(step(log_prob)).float().mean(dim=0)
    assert (some.diff() < 0).all()
    assert 0.5 < some[0] < 1


def test_noise_of_one_keeps_a_proposal_as_often_as_it_is_probable():
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1])
    first = NoisyConfidence(1.0)(step(probs.log().expand(8000, -1), calls_left=4))  # one of four in each sample
    assert torch.allclose(first.float().mean(dim=0), probs, atol=0.02)


def test_the_noise_of_revising_falls_evenly_to_zero_at_the_last_call():
    log_prob = -tiny.streams(200, "certainty").uniform(16)
    for calls_left, noise in ((4, 0.75), (3, 0.5), (2, 0.25)):
        before = step(log_prob, calls_left=calls_left, calls_per_block=4)
        assert torch.equal(Revise(1.0)(before), NoisyConfidence(noise)(before))


def test_random_order_ignores_confidence_and_keeps_the_quota():
    shown = AtRandom()(step(-torch.arange(8.0).expand(4000, -1)))
    assert (shown.sum(dim=1) == 4).all()
    assert torch.allclose(shown.float().mean(dim=0), torch.tensor(0.5), atol=0.03)


def test_a_threshold_keeps_all_that_exceed_it_and_never_less_than_the_plan():
    log_prob = torch.tensor([[0.95, 0.97, 0.99, 0.2], [0.1, 0.3, 0.2, 0.1]]).log()
    shown = AboveThreshold(0.9)(step(log_prob, calls_left=4))
    assert shown.int().tolist() == [[1, 1, 1, 0], [0, 1, 0, 0]]


def test_remasking_hides_committed_tokens_again_at_the_rate_of_the_time():
    committed = torch.zeros(2000, 20, dtype=torch.bool)
    shown = Remask()(step(torch.zeros(2000, 20), hidden=committed, calls_left=4, calls_per_block=4))
    assert 1 - shown.float().mean().item() == pytest.approx(0.75, abs=0.01)  # t = 3/4 after the first call
    assert Remask()(step(torch.zeros(9, 20), calls_left=1)).all()


def test_remasking_by_confidence_hides_a_share_at_random_and_puts_the_surest_proposals_in_its_place():
    hidden = torch.arange(16).expand(4000, -1) < 8
    log_prob = -torch.arange(16.0).expand(4000, -1)
    before = step(log_prob, hidden=hidden, calls_left=8, calls_per_block=16)
    shown = RemaskByConfidence(noise=0.0)(before)
    assert (shown[:, 8:].sum(dim=1) == 8 - 3).all()  # 7/16 of the 8 that were shown are hidden again
    assert torch.allclose(shown[:, 8:].float().mean(dim=0), torch.tensor(5 / 8), atol=0.03)
    assert (shown[:, :8] == (torch.arange(8) < 3 + 1)).all()  # in their place the surest, and one for the call


def test_remasking_by_confidence_shows_as_many_as_the_plan_says_after_every_call():
    hidden = torch.ones(200, 30, dtype=torch.bool)
    hidden[:100, 4:] = False  # some samples are far ahead of the plan: fewer proposals than a share of the shown
    for calls_left in range(7, 0, -1):
        before = step(
            -tiny.streams(200, calls_left).uniform(30), hidden=hidden, calls_left=calls_left, calls_per_block=7
        )
        shown = RemaskByConfidence()(before)
        assert torch.equal(shown.sum(dim=1), 30 - hidden.sum(dim=1) + before.quota())
        hidden = ~shown
    assert shown.all()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_every_rule_shows_all_at_the_last_call_and_nothing_outside_the_block(rule):
    is_open = torch.arange(10).expand(5, -1) < 6
    log_prob = -tiny.streams(5).uniform(10)
    last = RevealStep(log_prob, is_open, is_open, 1, 3, tiny.streams(5))
    assert torch.equal(rule(last), is_open)


@pytest.mark.parametrize("rule", KEEPING, ids=lambda rule: type(rule).__name__)
def test_every_rule_but_remasking_keeps_what_was_shown(rule):
    hidden = torch.arange(10).expand(50, -1) % 3 == 0
    shown = rule(step(-tiny.streams(50).uniform(10), hidden=hidden))
    assert shown[~hidden].all()
    assert (shown & hidden).sum(dim=1).eq(2).all() or isinstance(rule, AboveThreshold)


# ---------------------------------------------------------------- the end of a text


def test_an_eos_is_at_most_as_confident_as_the_tokens_before_it():
    log_prob = torch.tensor([[-1.0, -0.1, -0.2, -0.01, -0.3]])
    hidden = torch.tensor([[False, True, True, True, True]])
    held = hold_back_eos(log_prob, is_eos=torch.tensor([[False, False, False, True, True]]), hidden=hidden)
    assert torch.equal(held[:, 1:], torch.tensor([[-0.1, -0.2, -0.2, -0.3]]))


def test_a_text_does_not_stop_at_an_end_while_something_before_it_is_hidden():
    tokens = torch.tensor([[5, MASK, EOS, MASK], [5, 6, EOS, MASK], [EOS, MASK, MASK, MASK]])
    may_end = torch.tensor([False, True, True, True]).expand(3, -1)
    filled = fill_after_eos(tokens, may_end=may_end, mask_id=MASK, eos_id=EOS)
    assert filled.tolist() == [[5, MASK, EOS, MASK], [5, 6, EOS, EOS], [EOS, MASK, MASK, MASK]]


def test_only_what_stands_before_given_text_must_not_end():
    canvas = torch.tensor([[5, MASK, 6, MASK, EOS], [EOS, MASK, MASK, MASK, MASK]])
    assert before_given_text(canvas, given=canvas != MASK, eos_id=EOS).tolist() == [
        [True, True, True, False, False],
        [False] * 5,
    ]
