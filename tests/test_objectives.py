from dataclasses import replace

import pytest
import tiny
import torch
from tiny import CONDITIONAL, MASK, NUM_REGISTERS

from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.objectives import (
    DemaskerObjective,
    DistilObjective,
    PriorObjective,
    PromptedBatch,
    base_loss,
    conditional_prior_loss,
    distilled_loss,
    guided_step,
    mask_condition,
    prior_loss,
    prompted_demasking_loss,
    sample_visible_registers,
)
from crocodil.objectives.drafts import draft_tokens
from crocodil.processes.gaussian import shifted_time
from crocodil.processes.masking import Masked, sample_given
from crocodil.seeding import generator_for


def algorithm_1(encode, demasker, tokens, *, objective, streams):
    return guided_step(encode, demasker, tokens, objective=objective, mask_id=MASK, streams=streams)


def answers_in(tokens):
    """Positions of answers of 4 to 8 tokens inside these texts."""
    position, start, stop = torch.arange(tokens.shape[1]), 2 + tokens[:, :1] % 2, 7 + tokens[:, -1:] % 4
    return (position >= start) & (position < stop)


def with_a_prompt(encode, demasker, tokens, *, objective, streams):
    is_answer = answers_in(tokens)
    answers = tokens.where(is_answer, tiny.EOS)  # h_phi does not read the prompt
    batch = PromptedBatch(Masked(tokens, is_answer), answers, tokens, is_answer)
    return prompted_demasking_loss(encode, demasker, batch, objective=objective, mask_id=MASK, streams=streams)


GUIDED = pytest.mark.parametrize("guided", [algorithm_1, with_a_prompt])


def losses():
    """Every objective as a function of a batch of tokens and its streams."""
    base, demasker, encoder = tiny.llada(), tiny.demasker(), tiny.encoder()
    prior, conditional = tiny.denoiser(), tiny.denoiser(CONDITIONAL)
    student = tiny.denoiser(replace(prior.config, flow_map=True))

    def encode(tokens, hidden):
        return encoder(tokens, hidden=hidden)

    return {
        "base": lambda tokens, streams: base_loss(base, tokens, mask_id=MASK, streams=streams),
        "base with drafts": lambda tokens, streams: base_loss(
            base, tokens, mask_id=MASK, streams=streams, draft_rate=1.0
        ),
        **{
            f"{name} and a draft rate of {rate}": lambda tokens, streams, loss=loss, rate=rate: loss(
                encode, demasker, tokens, objective=DemaskerObjective(draft_rate=rate), streams=streams
            )
            for name, loss in (("Algorithm 1", algorithm_1), ("a prompt", with_a_prompt))
            for rate in (0.0, 1.0)
        },
        "Algorithm 4": lambda tokens, streams: conditional_prior_loss(
            conditional, encode, tokens, encoder(tokens),
            objective=PriorObjective(), mask_id=MASK, streams=streams,
        ),
        "Algorithm 5": lambda tokens, streams: prior_loss(
            prior, encoder(tokens), objective=PriorObjective(), streams=streams
        ),
        "distillation": lambda tokens, streams: distilled_loss(
            lambda noisy, time, end_time: student(noisy, time, end_time=end_time), prior, encoder(tokens),
            objective=DistilObjective(), prior_objective=PriorObjective(), streams=streams,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", losses())
def test_the_loss_of_a_batch_is_the_mean_over_its_samples_however_it_is_split(name):
    loss_of, tokens, streams = losses()[name], tiny.programs(8, 12), tiny.streams(8)
    together = loss_of(tokens, streams)
    alone = [loss_of(tokens[i : i + 1], streams[torch.tensor([i])]) for i in range(8)]
    assert torch.allclose(together, torch.stack(alone).mean(), rtol=1e-4)


@pytest.mark.parametrize("name", losses())
def test_the_same_streams_give_the_same_loss_and_others_another(name):
    loss_of, tokens = losses()[name], tiny.programs(4, 12)
    assert torch.equal(loss_of(tokens, tiny.streams(4, 0)), loss_of(tokens, tiny.streams(4, 0)))
    assert not torch.equal(loss_of(tokens, tiny.streams(4, 0)), loss_of(tokens, tiny.streams(4, 1)))


def seen_by_the_demasker(objective, count=2000, guided=algorithm_1):
    """What Algorithm 1 shows the demasker, and the clean registers behind it."""
    demasker, encoder, tokens = tiny.demasker(), tiny.encoder(), tiny.programs(count, 12)
    seen = {}
    demasker.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(noisy_tokens=args[0], registers=args[1], **kwargs),
        with_kwargs=True,
    )
    clean = encoder(tokens)
    with torch.no_grad():
        guided(lambda tokens, hidden: clean, demasker, tokens, objective=objective, streams=tiny.streams(count))
    return seen, clean


def test_algorithm_1_hides_everything_at_the_all_mask_rate():
    for rate in (0.0, 0.25, 1.0):
        seen, _ = seen_by_the_demasker(DemaskerObjective(all_mask_rate=rate, given_rate=0))
        all_hidden = (seen["noisy_tokens"] == MASK).all(dim=1).float().mean().item()
        by_chance = (1 - rate) / 13  # a uniform mask probability hides all 12 tokens once in 13
        assert all_hidden == pytest.approx(rate + by_chance, abs=0.03)


def test_a_fully_masked_text_has_no_given_tokens():
    seen, _ = seen_by_the_demasker(DemaskerObjective(all_mask_rate=1.0, given_rate=1.0), count=50)
    assert (seen["noisy_tokens"] == MASK).all()


def test_algorithm_1_shows_registers_at_the_cosine_of_the_paper():
    seen, clean = seen_by_the_demasker(DemaskerObjective())
    cosine = torch.cosine_similarity(seen["registers"], clean, dim=-1)
    assert cosine.mean().item() == pytest.approx(0.8, abs=0.02)  # exact as the width grows; here 16
    seen, clean = seen_by_the_demasker(DemaskerObjective(register_cosine=1.0), count=50)
    assert torch.equal(seen["registers"], clean)


@GUIDED
def test_the_noise_level_of_a_text_may_be_drawn_up_to_that_of_the_cosine(guided):
    seen, clean = seen_by_the_demasker(DemaskerObjective(uniform_noise=True), count=500, guided=guided)
    level = (seen["registers"] - clean).square().mean(dim=(1, 2)).sqrt()
    assert level.max() < 0.75 * 1.3  # 96 numbers each: the estimate of a level has an error of 7%
    assert torch.allclose(
        level.quantile(torch.tensor([0.25, 0.5, 0.75])), 0.75 * torch.tensor([0.25, 0.5, 0.75]), atol=0.06
    )


@GUIDED
def test_algorithm_1_replaces_registers_by_noise_of_their_norm_at_its_rate(guided):
    objective = DemaskerObjective(noise_prefix_rate=0.75, register_cosine=1.0)
    seen, clean = seen_by_the_demasker(objective, count=500, guided=guided)
    replaced = (seen["registers"] != clean).all(dim=(1, 2))
    assert torch.equal(seen["registers"][~replaced], clean[~replaced])
    assert replaced.float().mean().item() == pytest.approx(0.75, abs=0.05)
    noise = seen["registers"][replaced]
    assert torch.allclose(noise.norm(dim=-1), clean.norm(dim=-1)[replaced], rtol=1e-3)
    assert torch.cosine_similarity(noise, clean[replaced], dim=-1).mean().abs() < 0.02


def test_registers_that_are_replaced_by_noise_have_register_noise_of_their_own():
    seen, _ = seen_by_the_demasker(DemaskerObjective(noise_prefix_rate=1.0), count=200)
    assert seen["registers"].square().mean().item() == pytest.approx(1 + 0.75**2, abs=0.05)


@GUIDED
@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_the_encoder_reads_some_texts_in_part(rate, guided):
    asked = {}

    def encode(tokens, hidden):
        asked["hidden"] = hidden
        return torch.zeros(len(tokens), NUM_REGISTERS, 16)

    objective = DemaskerObjective(partial_rate=rate)
    with torch.no_grad():
        guided(encode, tiny.demasker(), tiny.programs(2000, 12), objective=objective, streams=tiny.streams(2000))
    some_hidden = asked["hidden"].any(dim=1).float().mean().item()
    assert some_hidden == pytest.approx(rate * 12 / 13, abs=0.03)  # a uniform share hides none of 12 once in 13
    assert asked["hidden"].float().mean().item() == pytest.approx(rate / 2, abs=0.02)


def test_algorithm_1_asks_for_logits_where_tokens_are_hidden():
    seen, _ = seen_by_the_demasker(DemaskerObjective(), count=50)
    assert torch.equal(seen["rows"], seen["noisy_tokens"] == MASK)


@pytest.mark.parametrize(
    ("objective", "law"),
    [
        (DemaskerObjective(), [0.1] + [0.9 / 6] * 6),
        (DemaskerObjective(empty_prefix_rate=0.0), [0] + [1 / 6] * 6),
        (DemaskerObjective(nested_dropout=False, empty_prefix_rate=0.5), [0.5, 0, 0, 0, 0, 0, 0.5]),
        (DemaskerObjective(prefix_lengths=(2, 2, 2, 6), empty_prefix_rate=0), [0, 0, 0.75, 0, 0, 0, 0.25]),
    ],
)
def test_the_law_of_the_prefix_length(objective, law):
    lengths = sample_visible_registers(NUM_REGISTERS, objective, tiny.streams(20_000))
    frequency = torch.bincount(lengths, minlength=NUM_REGISTERS + 1) / 20_000
    assert torch.allclose(frequency, torch.tensor(law, dtype=torch.float32), atol=0.012)


def test_gradients_of_algorithm_1_reach_encoder_and_demasker():
    encoder, demasker = tiny.encoder(), tiny.demasker()
    guided_step(
        lambda tokens, hidden: encoder(tokens), demasker, tiny.programs(32, 12),
        objective=DemaskerObjective(), mask_id=MASK, streams=tiny.streams(32),
    ).backward()  # fmt: skip
    for module in (encoder, demasker):
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


def test_a_denoiser_that_predicts_zero_has_loss_one():
    fresh = RegisterDenoiser(CONDITIONAL).init_weights(generator_for("fresh"))
    registers, tokens = tiny.encoder()(tiny.programs(64, 12)), tiny.programs(64, 12)
    assert prior_loss(
        fresh, registers, objective=PriorObjective(), streams=tiny.streams(64)
    ).item() == pytest.approx(1)
    assert conditional_prior_loss(
        fresh, lambda tokens, hidden: registers, tokens, registers,
        objective=PriorObjective(), mask_id=MASK, streams=tiny.streams(64),
    ).item() == pytest.approx(1)  # fmt: skip


def test_without_offsets_all_registers_share_one_time_and_with_them_later_ones_are_noisier():
    denoiser, registers, times = tiny.denoiser(), tiny.bank(200), {}
    denoiser.register_forward_pre_hook(lambda module, args: times.update(now=args[1]))
    prior_loss(denoiser, registers, objective=PriorObjective(largest_offset=0.0), streams=tiny.streams(200))
    assert torch.equal(times["now"], times["now"][:, :1].expand(-1, NUM_REGISTERS))
    prior_loss(denoiser, registers, objective=PriorObjective(), streams=tiny.streams(200))
    assert (times["now"][:, 0] < times["now"][:, -1]).float().mean() > 0.8


def test_a_time_shift_trains_a_prior_on_noisier_registers_and_their_times_say_so():
    denoiser, registers, seen = tiny.denoiser(), tiny.bank(200), {}
    denoiser.register_forward_pre_hook(lambda module, args: seen.update(noisy=args[0], time=args[1]))
    prior_loss(denoiser, registers, objective=PriorObjective(), streams=tiny.streams(200))
    plain = dict(seen)
    prior_loss(denoiser, registers, objective=PriorObjective(time_shift=3.0), streams=tiny.streams(200))
    assert torch.allclose(seen["time"], shifted_time(plain["time"], shift=3.0))
    assert (seen["noisy"] - registers).square().mean() > 1.2 * (plain["noisy"] - registers).square().mean()


def test_algorithm_4_conditions_on_visible_tokens_only_and_drops_the_condition_at_its_rate():
    tokens, seen = tiny.programs(1000, 12), {}
    denoiser = tiny.denoiser(CONDITIONAL)
    denoiser.register_forward_pre_hook(lambda module, args, kwargs: seen.update(kwargs), with_kwargs=True)

    def encode(noisy_tokens, hidden):
        assert torch.equal(noisy_tokens == MASK, hidden)
        assert torch.equal(noisy_tokens[~hidden], tokens[~hidden])
        seen["hidden"] = hidden.float().mean().item()
        return tiny.bank(1000)

    objective = PriorObjective(condition_drop_rate=0.2, given_rate=0)
    conditional_prior_loss(
        denoiser,
        encode,
        tokens,
        tiny.bank(1000),
        objective=objective,
        mask_id=MASK,
        streams=tiny.streams(1000),
    )
    assert seen["hidden"] == pytest.approx(0.5, abs=0.03)
    assert seen["keep_condition"].float().mean().item() == pytest.approx(0.8, abs=0.04)


def test_where_text_is_given_a_condition_shows_nothing_else():
    streams = tiny.streams(300)
    _, hidden = mask_condition(tiny.programs(300, 12), PriorObjective(given_rate=1.0), MASK, streams)
    given = sample_given(12, 1.0, streams=streams.at("given"))
    some = given.any(dim=1)
    assert some.float().mean() > 0.8
    assert torch.equal(hidden[some], ~given[some])


def test_an_encoder_of_its_own_for_masked_text_learns_along_and_a_fixed_one_does_not():
    own, tokens, registers = tiny.encoder(), tiny.programs(16, 12), tiny.bank(16)
    for learns in (True, False):
        own.zero_grad()
        own.requires_grad_(learns)
        conditional_prior_loss(
            tiny.denoiser(CONDITIONAL), lambda noisy, hidden: own(noisy, hidden=hidden), tokens, registers,
            objective=PriorObjective(), mask_id=MASK, streams=tiny.streams(16),
        ).backward()  # fmt: skip
        assert (own.suffix.grad is not None) is learns


def test_samples_without_tokens_have_a_bare_canvas_which_is_encoded_once():
    seen = []

    def encode(tokens, hidden):
        seen.append((tokens, hidden))
        return tiny.encoder()(tokens, hidden=hidden)

    tokens, registers = tiny.programs(8, 12), tiny.bank(8)
    model = tiny.denoiser(CONDITIONAL)
    loss = conditional_prior_loss(
        model, encode, tokens[6:], registers, objective=PriorObjective(), mask_id=MASK, streams=tiny.streams(8)
    )
    (own, _), (bare, hidden) = seen
    streams = tiny.streams(8)[torch.tensor([6, 7])]  # those of the samples with tokens
    assert torch.equal(own, mask_condition(tokens[6:], PriorObjective(), MASK, streams).noisy_tokens)
    assert bare.tolist() == [[tokens[6, 0].item()] + [MASK] * 11]
    assert hidden.tolist() == [[False] + [True] * 11]
    with torch.no_grad():
        elsewhere = torch.cat([registers[:6] + 1, registers[6:]])
        other = conditional_prior_loss(
            model, encode, tokens[6:], elsewhere, objective=PriorObjective(), mask_id=MASK, streams=tiny.streams(8)
        )
    assert not torch.isclose(loss, other)


def test_a_text_is_noised_several_times_under_one_condition():
    tokens, registers, seen = tiny.programs(4, 12), tiny.bank(6), []

    def record(_, arguments, named):
        seen.append((*arguments, named["condition"]))

    model = tiny.denoiser(CONDITIONAL)
    model.register_forward_pre_hook(record, with_kwargs=True)
    objective = PriorObjective(condition_drop_rate=0.0, largest_offset=0.0)
    options = {"objective": objective, "mask_id": MASK, "streams": tiny.streams(6)}
    encode = lambda noisy, hidden: tiny.encoder()(noisy, hidden=hidden)  # noqa: E731
    loss = conditional_prior_loss(model, encode, tokens, registers, num_draws=3, **options)
    (noisy, time, condition), (bare_noisy, bare_time, _) = seen
    assert [len(noisy), len(condition), len(bare_noisy)] == [12, 12, 6]
    assert torch.equal(condition, condition[::3].repeat_interleave(3, dim=0))
    assert not torch.equal(condition[0], condition[3])
    assert len(torch.cat([time, bare_time])[:, 0].unique()) == 18
    squared = [
        (model(one, at, condition=one_condition) - clean.repeat_interleave(3, dim=0)).square().mean()
        for one, at, one_condition, clean in [
            (noisy, time, condition, registers[2:]),
            (bare_noisy, bare_time, seen[1][2], registers[:2]),
        ]
    ]
    assert torch.allclose(loss, (2 * squared[0] + squared[1]) / 3)


def test_half_of_the_samples_see_what_the_denoiser_guessed_without_a_guess():
    guesses = []

    class Watched(RegisterDenoiser):
        def forward(self, noisy, time, *, guess=None, **condition):
            guesses.append(guess)
            return super().forward(noisy, time, guess=guess, **condition)

    model = Watched(replace(tiny.DENOISER, self_conditioned=True))
    model.load_state_dict(tiny.denoiser(model.config).state_dict())
    prior_loss(model, tiny.bank(8), objective=PriorObjective(), streams=tiny.streams(8)).backward()
    first, second = guesses
    assert first is None
    assert (second[:4] != 0).all()
    assert (second[4:] == 0).all()
    assert not second.requires_grad


def test_a_guess_is_made_without_the_condition_where_the_prediction_has_none():
    model, kept = tiny.denoiser(replace(CONDITIONAL, self_conditioned=True)), []
    model.register_forward_pre_hook(lambda _, args, named: kept.append(named["keep_condition"]), with_kwargs=True)
    conditional_prior_loss(
        model, lambda tokens, hidden: tiny.bank(len(tokens)), tiny.programs(40, 12), tiny.bank(40),
        objective=PriorObjective(condition_drop_rate=0.5), mask_id=MASK, streams=tiny.streams(40),
    )  # fmt: skip
    guess, prediction = kept
    assert torch.equal(guess, prediction[:20])
    assert not guess.all()


def test_a_draft_has_proposals_of_the_demasker_which_saw_them_masked():
    tokens, hidden = tiny.programs(50, 20) % 7, tiny.streams(50, "hidden").uniform(20) < 0.3
    noisy = tokens.masked_fill(hidden, MASK)

    def certain_of_eight(seen, rows):
        assert torch.equal(seen == MASK, hidden | rows)
        assert not (hidden & rows).any()
        return 100.0 * torch.nn.functional.one_hot(torch.full((int(rows.sum()),), 8), tiny.VOCAB)

    draft = draft_tokens(certain_of_eight, noisy, ~hidden, mask_id=MASK, streams=tiny.streams(50))
    drafted = draft != noisy
    assert (draft[drafted] == 8).all()
    share = drafted.sum(dim=1) / (~hidden).sum(dim=1)
    assert share.mean().item() == pytest.approx(0.5, abs=0.1)  # uniform over samples,
    assert share.std().item() == pytest.approx(12**-0.5, abs=0.07)  # and the same within one


def test_tokens_of_a_draft_are_drawn_as_often_as_they_are_probable():
    tokens = tiny.programs(400, 20) % 7
    logits = torch.full((tiny.VOCAB,), -torch.inf)
    logits[8:10] = torch.tensor([0.8, 0.2]).log()
    draft = draft_tokens(
        lambda _, rows: logits.expand(int(rows.sum()), -1), tokens, torch.ones_like(tokens, dtype=torch.bool),
        mask_id=MASK, streams=tiny.streams(400),
    )  # fmt: skip
    assert (draft == 9).sum().item() / (draft != tokens).sum().item() == pytest.approx(0.2, abs=0.02)
    assert torch.allclose((draft != tokens).float().mean(dim=0), torch.tensor(0.5), atol=0.08)  # at every place


def test_drafts_of_an_answer_leave_its_prompt_alone():
    encoder, demasker, tokens, calls = tiny.encoder(), tiny.demasker(), tiny.programs(200, 12), []
    demasker.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append((args[0], kwargs["rows"])), with_kwargs=True
    )
    objective = DemaskerObjective(draft_rate=0.5, uniform_noise=True, partial_rate=0.5, noise_prefix_rate=0.5)
    with torch.no_grad():
        with_a_prompt(
            lambda tokens, hidden: encoder(tokens, hidden=hidden), demasker, tokens,
            objective=objective, streams=tiny.streams(200),
        )  # fmt: skip
    is_answer = answers_in(tokens)
    for noisy, read in calls:  # one to draft, one for the loss
        is_prompt = ~is_answer[: len(noisy)]
        assert torch.equal(noisy[is_prompt], tokens[: len(noisy)][is_prompt])
        assert not read[is_prompt].any()
    (drafting, proposed), (noisy, read) = calls
    assert len(drafting) == 100
    wrong = (noisy != tokens) & (noisy != MASK)
    assert wrong[:100].any()
    assert not (wrong[:100] & ~proposed).any()
    assert not wrong[100:].any()
    assert torch.equal(read[:100], is_answer[:100])  # a draft is predicted as a whole, other texts where hidden
    assert torch.equal(read[100:], noisy[100:] == MASK)
