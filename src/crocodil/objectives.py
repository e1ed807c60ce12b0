"""Training losses: plain masked diffusion, Algorithms 1, 4 and 5, and distillation, one function each.

Each function takes one batch and one stream of random numbers per sample, and returns the loss. Optimisers,
files and the training loop are elsewhere.
"""

from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from crocodil.models.demasker import Demasker
from crocodil.models.llada import Embeddings, LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.processes.gaussian import (
    Denoise,
    Offsets,
    add_noise,
    block_offsets,
    ddim_step,
    effective_time,
    first_part,
    sample_base_time,
)
from crocodil.processes.masking import Masked, bare_canvas, demasking_loss, mask_prob_at, mask_tokens, sample_given
from crocodil.processes.registers import (
    block_index,
    noise_std_for_cosine,
    perturb,
    replace_by_noise,
    sample_block_end,
    sample_prefix_length,
)
from crocodil.runtime.config import (
    Amount,
    Cosine,
    Guidance,
    Length,
    PagScale,
    Positive,
    Share,
    Steps,
    Weight,
    config,
)
from crocodil.seeding import Streams
from crocodil.shapes import PerSample, Positions, PrefixLength, RegisterBank, RegisterTime, TokenIds

Encode: TypeAlias = Callable[[TokenIds, Positions | None], RegisterBank]  # (tokens, hidden positions) -> registers
# A flow map: (z_t, t, end time) -> the prediction with which a DDIM step ends where the flow does
Jump: TypeAlias = Callable[[RegisterBank, RegisterTime, RegisterTime], RegisterBank]
Loss: TypeAlias = Float[Tensor, ""]
AlignBy: TypeAlias = Literal["token", "position"]


@config
class DemaskerObjective:
    """Options of Algorithm 1; the paper's ablations are other values of these fields."""

    register_cosine: Cosine = 0.8  # Alg. 1, line 5; 1 trains without register noise (Fig. 7)
    uniform_noise: bool = False  # draw each text's noise level between 0 and that of `register_cosine` (D48)
    all_mask_rate: Share = 0.25  # App. C, "all-mask utilization schedule"
    nested_dropout: bool = True  # App. C
    prefix_ends_with_block: bool = False  # draw k only from the ends of blocks (decision D2)
    prefix_lengths: tuple[Amount, ...] = ()  # draw k only from this list; repeats raise the odds (D2)
    empty_prefix_rate: Share = 0.1  # how often k = 0 (decision D14)
    noise_prefix_rate: Share = 0.0  # how often the registers are replaced by noise (decision D41)
    given_rate: Share = 0.1  # how often a prefix, suffix or both are given (decision D24); 0 in the paper
    partial_rate: Share = 0.0  # how often the encoder sees only part of the text, as in a condition (D30)


@config
class PriorObjective:
    """Options of Algorithms 4 and 5."""

    largest_offset: Share = 0.1  # largest block offset (decision D4); 0 trains without offsets (App. G)
    time_shift: Positive = 1.0  # above 1: more noisy diffusion times, below 1: fewer (`shifted_time`)
    condition_drop_rate: Share = 0.1  # how often Algorithm 4 uses the null condition (decision D15)
    given_rate: Share = 0.25  # how often only a prefix, suffix or both are visible (D24); 0 in the paper
    bare_rate: Share = 0.0  # share of a batch with a fully masked canvas, for one denoiser as both priors (D15)
    self_condition_rate: Share = 0.5  # share of a batch that is given a guess, if self-conditioned (D25)


@config
class DistilObjective:
    """Options of stage distilled (decisions D51 and D52)."""

    teachers: tuple[Literal["prior", "conditional"], ...] = ("prior", "conditional")  # which are distilled
    draw_steps: Steps = 4  # of a draw, in the model that is exported
    teacher_steps: Steps = 32  # a step of the teacher in training is this part of the way
    teacher_calls: Steps = 4  # of these steps, how many begin a jump
    pag_scale: PagScale = 0.0  # guidance of the teacher, which the student learns: D33,
    self_cond_scale: Guidance = 1.0  # D42,
    autoguidance: Guidance = 1.0  # and D43
    same_time_rate: Share = 0.25  # how often the end time is the time itself: the teacher's own prediction
    to_clean_rate: Share = 0.25  # how often a jump goes all the way
    own_rate: Share = 0.5  # how often it starts where a jump of the student from pure noise ends

    def __post_init__(self) -> None:
        if not self.teachers or len(set(self.teachers)) < len(self.teachers):
            raise ValueError("teachers should be prior, conditional, or each of them once")

    @property
    def guiding_calls(self) -> int:
        """The predictions that guide one of the teacher."""
        return (self.pag_scale != 0) + (self.self_cond_scale != 1) + (self.autoguidance != 1)


@config
class PromptedObjective:
    """Options of stage prompted (App. H, decision D57)."""

    own_encoder: bool = False  # train h_kappa, which begins as h_phi; False: h_kappa is h_phi
    prompt_drop_rate: Share = 0.1  # how often the null prompt is used,
    condition_drop_rate: Share = 0.5  # and how often the null condition: a first draw knows the prompt alone
    prompt_length: Length = 128  # tokens of a prompt on its canvas
    answer_length: Length = 64  # and of an answer, with BOS and EOS
    demasker_learns: bool = True  # train the demasker to read prompts too
    length_weight: Weight = 0.01  # of the loss of the length head


def base_loss(
    demasker: LLaDA, tokens: TokenIds, *, mask_id: int, streams: Streams, time: PerSample | None = None
) -> Loss:
    """Return the loss of plain masked diffusion: Eq. 5 without guidance. `time` is drawn if not given."""
    mask_prob = mask_prob_at(streams.at("time").uniform() if time is None else time)
    noisy_tokens, hidden = mask_tokens(tokens, mask_prob, mask_id=mask_id, streams=streams.at("mask"))
    return demasking_loss(demasker(noisy_tokens, rows=hidden), tokens, hidden, mask_prob)


def aligned_base_loss(
    demasker: LLaDA,
    targets: Sequence[Embeddings],
    tokens: TokenIds,
    *,
    weight: float,
    by: AlignBy = "token",
    streams: Streams,
    time: PerSample | None = None,
) -> dict[str, Loss]:
    """Return both parts of REPR-ALIGN (arXiv:2605.06885): Eq. 5 without guidance, and weight x alignment.

    `targets` are the states of the frozen causal model on the clean tokens, after the layers that the demasker
    began as. By "token", as in the authors' code, states that predict the same hidden token are aligned; the
    causal model's is one position earlier, unless the demasker is shifted too. By "position", a reading of ours,
    states at the same position are aligned, hidden or not. Padding is left out of both.
    """
    config = demasker.config
    mask_prob = mask_prob_at(streams.at("time").uniform() if time is None else time)
    noisy_tokens, hidden = mask_tokens(tokens, mask_prob, mask_id=config.mask_id, streams=streams.at("mask"))
    logits, states = demasker(noisy_tokens, rows=hidden, with_states=True)
    where = tokens != config.eos_id
    if by == "token":
        where = (where & hidden)[:, 1:]
        states = [state[:, :-1] if config.shifted else state[:, 1:] for state in states]
        targets = [target[:, :-1] for target in targets]
    return {
        "demasking_loss": demasking_loss(logits, tokens, hidden, mask_prob),
        "alignment_loss": weight * alignment_loss(states, targets, where),
    }


def alignment_loss(states: Sequence[Embeddings], targets: Sequence[Embeddings], where: Positions) -> Loss:
    """Return 1 - cos(h_l, g_l), averaged over the layers l, the positions in `where`, and the samples.

    The authors average over all positions of a batch; a mean per sample does not depend on how a batch is split.
    """
    cosines = [F.cosine_similarity(h.float(), g.float(), dim=-1) for h, g in zip(states, targets, strict=True)]
    distance = (1 - torch.stack(cosines).mean(dim=0)) * where
    return (distance.sum(dim=1) / where.sum(dim=1).clamp(min=1)).mean()


@torch.no_grad()
def causal_states(model: LLaDA, tokens: TokenIds, layers: Sequence[int]) -> list[Embeddings]:
    """Return the states of a causal model after these of its layers, in rising order."""
    angles = model.angles(torch.arange(tokens.shape[1], device=tokens.device)[None])
    states = islice(model.block_states(model.embed(tokens), angles, causal=True), layers[-1] + 2)
    wanted = set(layers)
    return [state for layer, state in enumerate(states, start=-1) if layer in wanted]


def guided_loss(
    encode: Encode,
    demasker: Demasker,
    tokens: TokenIds,
    *,
    objective: DemaskerObjective,
    mask_id: int,
    streams: Streams,
    time: PerSample | None = None,
) -> Loss:
    """Algorithm 1: return the loss of robust encoder-demasker training. `time` is drawn if not given."""
    time = streams.at("time").uniform() if time is None else time  # line 2
    mask_prob = _mask_some_fully(mask_prob_at(time), objective.all_mask_rate, streams.at("all-mask"))
    given = sample_given(tokens.shape[1], objective.given_rate, streams=streams.at("given"))
    noisy_tokens, hidden = mask_tokens(  # line 3
        tokens, mask_prob, mask_id=mask_id, streams=streams.at("mask"), given=given & (mask_prob < 1)[:, None]
    )
    encoder_hidden = _encoder_hidden(tokens, objective, streams.at("unseen")) if objective.partial_rate else None
    registers = encode(tokens, encoder_hidden)  # line 4
    if objective.noise_prefix_rate:
        registers = replace_by_noise(
            registers, rate=objective.noise_prefix_rate, streams=streams.at("noise prefix")
        )
    std: float | Tensor = noise_std_for_cosine(objective.register_cosine)
    if objective.uniform_noise:
        std = std * streams.at("noise level").uniform(1, 1)
    noisy_registers = perturb(registers, std=std, streams=streams.at("register noise"))  # line 5
    prefix_length = sample_visible_registers(registers.shape[1], objective, streams.at("prefix"))
    logits = demasker(noisy_tokens, noisy_registers, prefix_length=prefix_length, rows=hidden)
    return demasking_loss(logits, tokens, hidden, mask_prob)  # line 6


def prior_loss(
    denoiser: RegisterDenoiser, registers: RegisterBank, *, objective: PriorObjective, streams: Streams
) -> Loss:
    """Algorithm 5: return the loss of the unconditional prior on registers of the frozen encoder (line 3)."""
    registers = denoiser.standardise(registers)
    noisy_registers, time = _diffuse(registers, objective, streams)  # lines 2 and 4
    return F.mse_loss(_denoise(denoiser, noisy_registers, time, objective), registers)  # line 5


def conditional_prior_loss(
    denoiser: RegisterDenoiser,
    encode_condition: Encode,
    tokens: Int[Tensor, "V N"],
    registers: RegisterBank,
    *,
    objective: PriorObjective,
    mask_id: int,
    streams: Streams,
) -> Loss:
    """Algorithm 4: return the loss of the conditional prior on registers of the frozen encoder (line 2).

    `encode_condition` is h_phi, kept fixed by the caller, or a second encoder h_mu that is trained too
    (Sec. 4.3.2, comment iii). `tokens` belong to the last samples of the batch. The other samples are conditioned
    on the fully masked canvas with which generation starts; it is encoded once for all of them.
    """
    registers = denoiser.standardise(registers)
    noisy_registers, time = _diffuse(registers, objective, streams)  # lines 3-4
    num_bare = len(registers) - len(tokens)
    condition_streams = Streams(streams.keys[num_bare:])
    condition = encode_condition(*mask_condition(tokens, objective, mask_id, condition_streams))  # lines 5-6
    keep = condition_streams.at("keep condition").uniform() >= objective.condition_drop_rate
    predicted = _denoise(denoiser, noisy_registers[num_bare:], time[num_bare:], objective, condition, keep)
    if num_bare:
        bare = encode_condition(*bare_canvas(tokens, mask_id=mask_id))
        predicted_bare = _denoise(denoiser, noisy_registers[:num_bare], time[:num_bare], objective, bare)
        predicted = torch.cat([predicted_bare, predicted])
    return F.mse_loss(predicted, registers)  # line 7


class PromptedBatch(NamedTuple):
    """Prompts and answers on their canvases (`text/prompts.py`)."""

    prompts: Masked
    answers: TokenIds
    texts: TokenIds
    is_answer: Positions  # on `texts`


def prompted_prior_loss(
    denoiser: RegisterDenoiser,
    encode: Encode,
    prompt: RegisterBank,
    answers: TokenIds,
    *,
    objective: PromptedObjective,
    prior_objective: PriorObjective,
    mask_id: int,
    streams: Streams,
) -> Loss:
    """App. H: return the loss of g_psi(z_t, t, h_phi(x_t), h_kappa(c)), where z_0 are the registers of an answer.

    `encode` is h_phi, kept fixed by the caller, and `prompt` is h_kappa(c). Each is dropped by a draw of its own.
    """
    registers = denoiser.standardise(encode(answers, None)[:, : denoiser.config.num_registers])
    noisy_registers, time = _diffuse(registers, prior_objective, streams)
    condition = encode(*mask_condition(answers, prior_objective, mask_id, streams))
    keep = streams.at("keep condition").uniform() >= objective.condition_drop_rate
    keep_prompt = streams.at("keep prompt").uniform() >= objective.prompt_drop_rate
    predicted = _denoise(denoiser, noisy_registers, time, prior_objective, condition, keep, prompt, keep_prompt)
    return F.mse_loss(predicted, registers)


def prompted_demasking_loss(
    encode: Encode,
    demasker: Demasker,
    batch: PromptedBatch,
    *,
    objective: DemaskerObjective,
    mask_id: int,
    streams: Streams,
) -> Loss:
    """Algorithm 1 with a prompt (App. H): only answers are hidden, and registers of answers guide.

    The loss is per token of an answer, then a mean over samples: it does not depend on how a batch is split.
    """
    mask_prob = _mask_some_fully(
        mask_prob_at(streams.at("time").uniform()), objective.all_mask_rate, streams.at("all-mask")
    )
    noisy_tokens, hidden = mask_tokens(
        batch.texts, mask_prob, mask_id=mask_id, streams=streams.at("mask"), given=~batch.is_answer
    )
    registers = encode(batch.answers, None)
    std = noise_std_for_cosine(objective.register_cosine)
    noisy_registers = perturb(registers, std=std, streams=streams.at("register noise"))
    prefix_length = sample_visible_registers(registers.shape[1], objective, streams.at("prefix"))
    logits = demasker(noisy_tokens, noisy_registers, prefix_length=prefix_length, rows=hidden)
    share_of_canvas = batch.is_answer.float().mean(dim=1)
    return demasking_loss(logits, batch.texts, hidden, mask_prob * share_of_canvas)


def distilled_loss(
    student: Jump,
    teacher: Denoise,
    registers: RegisterBank,
    *,
    objective: DistilObjective,
    prior_objective: PriorObjective,
    streams: Streams,
) -> Loss:
    """Distillation into a flow map: the student jumps from z_t to where the teacher's flow is at an earlier time.

    The target joins a few DDIM steps of the teacher and the student's own jump over the rest (Kim et al., 2023,
    arXiv:2310.02279, Eq. 9; with end time 0 and one step, Song et al., 2023, arXiv:2303.01469). Registers are in
    the prior's units.
    """
    offsets = _offsets(registers, prior_objective)
    base_times = _jump_times(offsets, objective, streams)
    times = [effective_time(base, offsets, shift=prior_objective.time_shift) for base in base_times]
    time, end = times[0], times[-1]
    noise = streams.at("noise").normal(*registers.shape[1:])
    noisy_registers = add_noise(registers, time, noise)
    with torch.no_grad():
        if objective.own_rate:
            top = torch.ones_like(time)
            drawn = ddim_step(noise, student(noise, top, time), top, time)
            own = streams.at("own").uniform() < objective.own_rate
            noisy_registers = torch.where(own[:, None, None], drawn, noisy_registers)
        target, stepped = torch.zeros_like(noise), noisy_registers
        for number, (now, then) in enumerate(pairwise(times)):
            is_rest = number == objective.teacher_calls
            predicted = student(stepped, now, then) if is_rest else teacher(stepped, now)
            target = predicted.lerp(target, first_part(time, now, then)[..., None]) if number else predicted
            stepped = ddim_step(stepped, predicted, now, then)
    return F.mse_loss(student(noisy_registers, time, end), target)


def _jump_times(offsets: Offsets, objective: DistilObjective, streams: Streams) -> list[PerSample]:
    """Sample base times: where a jump starts, where each step of the teacher ends, and where the jump ends."""
    clean = -offsets.max()
    start = sample_base_time(offsets, streams=streams.at("time"))
    share, kind = streams.at("end").uniform(), streams.at("kind").uniform()
    share = share.masked_fill(kind < objective.same_time_rate + objective.to_clean_rate, 0.0)
    share = share.masked_fill(kind < objective.same_time_rate, 1.0)
    end = clean + share * (start - clean)
    step = (1 - clean) / objective.teacher_steps
    return [torch.maximum(start - number * step, end) for number in range(objective.teacher_calls + 1)] + [end]


def _encoder_hidden(tokens: TokenIds, objective: DemaskerObjective, streams: Streams) -> Positions:
    """Sample the positions hidden from the encoder: none in most samples, a random share in the others."""
    chosen = streams.at("chosen").uniform() < objective.partial_rate
    share = streams.at("share").uniform() * chosen
    return streams.at("places").uniform(tokens.shape[1]) < share[:, None]


def mask_condition(tokens: TokenIds, objective: PriorObjective, mask_id: int, streams: Streams) -> Masked:
    """Mask the tokens that the condition is computed from."""
    given = sample_given(tokens.shape[1], objective.given_rate, streams=streams.at("given"))
    # If tokens are given, all others are hidden: decoding with given tokens starts like this.
    mask_prob = streams.at("mask time").uniform().masked_fill(given.any(dim=1), 1.0)
    return mask_tokens(tokens, mask_prob, mask_id=mask_id, streams=streams.at("mask"), given=given)


def _denoise(
    denoiser: RegisterDenoiser,
    noisy_registers: RegisterBank,
    time: RegisterTime,
    objective: PriorObjective,
    condition: Float[Tensor, "_ C E"] | None = None,
    keep: Bool[Tensor, "B"] | None = None,
    prompt: Float[Tensor, "_ P F"] | None = None,
    keep_prompt: Bool[Tensor, "B"] | None = None,
) -> RegisterBank:
    """Predict the clean bank; part of the batch sees a first prediction as its guess (decision D25)."""
    prompted: dict[str, Any] = {} if prompt is None else {"prompt": prompt, "keep_prompt": keep_prompt}
    if not denoiser.config.self_conditioned:
        return denoiser(noisy_registers, time, condition=condition, keep_condition=keep, **prompted)
    guess, num_guessed = torch.zeros_like(noisy_registers), round(objective.self_condition_rate * len(time))
    if num_guessed:
        with torch.no_grad():
            guess[:num_guessed] = denoiser(
                noisy_registers[:num_guessed],
                time[:num_guessed],
                condition=None
                if condition is None
                else condition[:num_guessed],  # a shared condition keeps one row
                keep_condition=None if keep is None else keep[:num_guessed],
                **{name: None if value is None else value[:num_guessed] for name, value in prompted.items()},
            )
    return denoiser(noisy_registers, time, guess=guess, condition=condition, keep_condition=keep, **prompted)


def sample_visible_registers(num_registers: int, objective: DemaskerObjective, streams: Streams) -> PrefixLength:
    """Sample k, the number of registers that the demasker sees (App. C; decisions D2 and D14)."""
    if not objective.nested_dropout:
        length = torch.full_like(streams.keys, num_registers)
    elif objective.prefix_lengths:
        choices = torch.tensor(objective.prefix_lengths, device=streams.keys.device)
        length = choices[streams.at("length").integers(0, len(choices) - 1)]
    elif objective.prefix_ends_with_block:
        length = sample_block_end(num_registers, streams=streams.at("length"))
    else:
        length = sample_prefix_length(num_registers, streams=streams.at("length"))
    empty = streams.at("empty").uniform() < objective.empty_prefix_rate
    return length.masked_fill(empty, 0)


def _mask_some_fully(mask_prob: PerSample, rate: float, streams: Streams) -> PerSample:
    return mask_prob.masked_fill(streams.uniform() < rate, 1.0)


def _diffuse(
    registers: RegisterBank, objective: PriorObjective, streams: Streams
) -> tuple[RegisterBank, Float[Tensor, "B K"]]:
    """Return z_s and the effective time of every register."""
    offsets = _offsets(registers, objective)
    base_time = sample_base_time(offsets, streams=streams.at("time"))
    time = effective_time(base_time, offsets, shift=objective.time_shift)
    noise = streams.at("noise").normal(*registers.shape[1:])
    return add_noise(registers, time, noise), time


def _offsets(registers: RegisterBank, objective: PriorObjective) -> Offsets:
    return block_offsets(block_index(registers.shape[1], registers.device), largest=objective.largest_offset)
