"""Losses of the demasker: plain masked diffusion, and Algorithm 1."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.objectives.drafts import DemaskRows, with_drafts
from crocodil.processes.masking import Masked, demasking_loss, mask_prob_at, mask_tokens, sample_given
from crocodil.processes.registers import (
    noise_std_for_cosine,
    perturb,
    replace_by_noise,
    sample_prefix_length,
)
from crocodil.runtime.config import Amount, Cosine, Share, config
from crocodil.seeding import Streams
from crocodil.shapes import PerSample, Positions, PrefixLength, RegisterBank, RowLogits, TokenIds

Encode: TypeAlias = Callable[[TokenIds, Positions | None], RegisterBank]  # (tokens, hidden positions) -> registers
Loss: TypeAlias = Float[Tensor, ""]


@config
class DemaskerObjective:
    """Options of Algorithm 1; the paper's ablations are other values of these fields."""

    register_cosine: Cosine = 0.8  # Alg. 1, line 5; 1 trains without register noise (Fig. 7)
    uniform_noise: bool = False  # draw each text's noise level between 0 and that of `register_cosine` (D48)
    all_mask_rate: Share = 0.25  # App. C, "all-mask utilization schedule"
    nested_dropout: bool = True  # App. C
    prefix_lengths: tuple[Amount, ...] = ()  # draw k only from this list; repeats raise the odds (D2)
    empty_prefix_rate: Share = 0.1  # how often k = 0 (decision D14)
    noise_prefix_rate: Share = 0.0  # how often the registers are replaced by noise (decision D41)
    given_rate: Share = 0.1  # how often a prefix, suffix or both are given (decision D24); 0 in the paper
    partial_rate: Share = 0.0  # how often the encoder sees only part of the text, as in a condition (D30)
    draft_rate: Share = 0.0  # share of a batch where the demasker corrects its own proposals (decision D62)


def base_loss(
    demasker: LLaDA,
    tokens: TokenIds,
    *,
    mask_id: int,
    streams: Streams,
    time: PerSample | None = None,
    draft_rate: float = 0.0,
) -> Loss:
    """Return the loss of plain masked diffusion: Eq. 5 without guidance. `time` is drawn if not given.

    `draft_rate` is the share of the batch where the base corrects its own proposals (decision D62).
    """
    mask_prob = mask_prob_at(streams.at("time").uniform() if time is None else time)
    noisy_tokens, hidden = mask_tokens(tokens, mask_prob, mask_id=mask_id, streams=streams.at("mask"))
    noisy_tokens, read = with_drafts(
        lambda noisy, rows: demasker(noisy, rows=rows),
        noisy_tokens,
        hidden,
        rate=draft_rate,
        mask_id=mask_id,
        streams=streams.at("draft"),
    )
    return demasking_loss(demasker(noisy_tokens, rows=read), tokens, hidden, mask_prob, read=read)


def guided_step(
    encode: Encode,
    demasker: Demasker,
    tokens: TokenIds,
    *,
    objective: DemaskerObjective,
    mask_id: int,
    streams: Streams,
    time: PerSample | None = None,
) -> Loss:
    """Algorithm 1: one step of robust encoder-demasker training. `time` is drawn if not given."""
    masked, mask_prob = mask_texts(tokens, objective, mask_id=mask_id, streams=streams, time=time)  # lines 2 and 3
    guide = sample_guide(encode, tokens, objective, streams)  # lines 4 and 5
    return guided_loss(  # line 6
        demasker, guide, tokens, masked, mask_prob, objective=objective, mask_id=mask_id, streams=streams
    )


class MaskedTexts(NamedTuple):
    """Noisy tokens, and with which probability each text's tokens were hidden."""

    masked: Masked
    mask_prob: PerSample


def mask_texts(
    tokens: TokenIds,
    objective: DemaskerObjective,
    *,
    mask_id: int,
    streams: Streams,
    time: PerSample | None = None,
) -> MaskedTexts:
    """Hide tokens of texts: Algorithm 1, lines 2 and 3. `time` is drawn if not given."""
    time = streams.at("time").uniform() if time is None else time
    mask_prob = mask_some_fully(mask_prob_at(time), objective.all_mask_rate, streams.at("all-mask"))
    given = sample_given(tokens.shape[1], objective.given_rate, streams=streams.at("given"))
    masked = mask_tokens(
        tokens, mask_prob, mask_id=mask_id, streams=streams.at("mask"), given=given & (mask_prob < 1)[:, None]
    )
    return MaskedTexts(masked, mask_prob)


class Guide(NamedTuple):
    """The registers that guide the demasker."""

    noisy: RegisterBank  # of these the demasker reads the first ...
    prefix_length: PrefixLength  # ... so many


def sample_guide(encode: Encode, tokens: TokenIds, objective: DemaskerObjective, streams: Streams) -> Guide:
    """Encode texts, or answers, and corrupt their registers: Algorithm 1, lines 4 and 5."""
    hidden = _encoder_hidden(tokens, objective, streams.at("unseen")) if objective.partial_rate else None
    registers = encode(tokens, hidden)  # line 4
    if objective.noise_prefix_rate:
        registers = replace_by_noise(
            registers, rate=objective.noise_prefix_rate, streams=streams.at("noise prefix")
        )
    std: float | Tensor = noise_std_for_cosine(objective.register_cosine)
    if objective.uniform_noise:
        std = std * streams.at("noise level").uniform(1, 1)
    noisy = perturb(registers, std=std, streams=streams.at("register noise"))  # line 5
    prefix_length = sample_visible_registers(registers.shape[1], objective, streams.at("prefix"))
    return Guide(noisy, prefix_length)


def guided_loss(
    demasker: Demasker,
    guide: Guide,
    tokens: TokenIds,
    masked: Masked,
    mask_prob: PerSample,
    *,
    objective: DemaskerObjective,
    mask_id: int,
    streams: Streams,
    is_answer: Positions | None = None,
) -> Loss:
    """Return the loss of the guided demasker: Algorithm 1, line 6, with drafts (decision D62).

    If `is_answer` is given, all other tokens are a prompt: no draft changes them, and they have no loss.
    """
    demask = guided_by(demasker, guide)
    noisy_tokens, read = with_drafts(
        demask,
        *masked,
        rate=objective.draft_rate,
        mask_id=mask_id,
        streams=streams.at("draft"),
        is_answer=is_answer,
    )
    logits = demask(noisy_tokens, read)
    return demasking_loss(logits, tokens, masked.hidden, mask_prob, read=read, is_answer=is_answer)


def guided_by(demasker: Demasker, guide: Guide) -> DemaskRows:
    """Return the demasker as a function of the tokens and the rows to predict."""

    def demask(some_tokens: TokenIds, rows: Positions) -> RowLogits:
        count = len(some_tokens)  # drafts are the first samples
        return demasker(some_tokens, guide.noisy[:count], prefix_length=guide.prefix_length[:count], rows=rows)

    return demask


def sample_visible_registers(num_registers: int, objective: DemaskerObjective, streams: Streams) -> PrefixLength:
    """Sample k, the number of registers that the demasker sees (App. C; decisions D2 and D14)."""
    if not objective.nested_dropout:
        length = torch.full_like(streams.keys, num_registers)
    elif objective.prefix_lengths:
        choices = torch.tensor(objective.prefix_lengths, device=streams.keys.device)
        length = choices[streams.at("length").integers(0, len(choices) - 1)]
    else:
        length = sample_prefix_length(num_registers, streams=streams.at("length"))
    empty = streams.at("empty").uniform() < objective.empty_prefix_rate
    return length.masked_fill(empty, 0)


def mask_some_fully(mask_prob: PerSample, rate: float, streams: Streams) -> PerSample:
    return mask_prob.masked_fill(streams.uniform() < rate, 1.0)


def _encoder_hidden(tokens: TokenIds, objective: DemaskerObjective, streams: Streams) -> Positions:
    """Sample the positions hidden from the encoder: none in most samples, a random share in the others."""
    chosen = streams.at("chosen").uniform() < objective.partial_rate
    share = streams.at("share").uniform() * chosen
    return streams.at("places").uniform(tokens.shape[1]) < share[:, None]
