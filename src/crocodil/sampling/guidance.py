"""The networks with guidance, as functions that the samplers call.

`Demask` is f_theta: it maps a canvas and registers to logits at the requested positions. `Denoise`
(`processes.gaussian`) is g_psi. This module does not know plans, reveal rules, randomness or costs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from crocodil.models.causal_head import CausalHead, Choose
from crocodil.models.demasker import Demasker
from crocodil.models.llada import Embeddings, LLaDA, picked, read_part
from crocodil.processes.gaussian import Denoised
from crocodil.shapes import PositionIndices, ReadLength, RegisterBank, RegisterTime, RowLogits, TokenIds

# (canvas, registers, positions of the logits) -> logits; to crop, also how many positions of each canvas to read
Demask: TypeAlias = Callable[..., RowLogits]


@dataclass(frozen=True)
class Unguided:
    """The base MDM: it ignores registers."""

    demasker: LLaDA

    def __call__(
        self,
        noisy_tokens: TokenIds,
        registers: RegisterBank | None,
        rows: PositionIndices,
        read_length: ReadLength | None = None,
    ) -> RowLogits:
        return _read(self.demasker, noisy_tokens, rows, read_length)


@dataclass(frozen=True)
class Guided:
    """The guided demasker; without registers it reads only START and END before the text (decision D14).

    With a causal head it can also draw the tokens of a call one after the other (decision D88): `states` and
    `logits` are the two halves of a call, `draw` fills positions from left to right.
    """

    demasker: Demasker
    num_registers: int | None = None  # guide with the first registers only; None: with all
    head: CausalHead | None = None

    def __call__(
        self,
        noisy_tokens: TokenIds,
        registers: RegisterBank | None,
        rows: PositionIndices,
        read_length: ReadLength | None = None,
    ) -> RowLogits:
        return self.demasker(noisy_tokens, self._read(noisy_tokens, registers), rows=rows, read_length=read_length)

    def states(
        self, noisy_tokens: TokenIds, registers: RegisterBank | None, read_length: ReadLength | None = None
    ) -> Embeddings:
        return self.demasker.states(noisy_tokens, self._read(noisy_tokens, registers), read_length=read_length)

    def logits(self, states: Embeddings, rows: PositionIndices) -> RowLogits:
        return self.demasker.backbone.logits(picked(states, rows))

    def draw(self, states: Embeddings, tokens: TokenIds, positions: PositionIndices, choose: Choose) -> TokenIds:
        assert self.head is not None
        return self.head.draw(states, tokens, positions, choose, self.demasker.backbone)

    def _read(self, noisy_tokens: TokenIds, registers: RegisterBank | None) -> Float[Tensor, "B _ D"]:
        """Return the registers that guide: the first ones, all of them, or none."""
        if registers is None:
            empty = (len(noisy_tokens), 0, self.demasker.config.register_width)
            registers = torch.zeros(empty, device=noisy_tokens.device)
        return registers[:, : self.num_registers]


@dataclass(frozen=True)
class PromptGuided:
    """A base with classifier-free guidance by its prompt: the unconditional call masks the prompt.

    The prompt takes the place of registers in `strengthened`. LLaDA's scale s is guidance s + 1.
    """

    demasker: LLaDA
    prompt_length: int

    def __call__(
        self,
        noisy_tokens: TokenIds,
        registers: RegisterBank | None,
        rows: PositionIndices,
        read_length: ReadLength | None = None,
    ) -> RowLogits:
        if registers is None:
            in_prompt = torch.arange(noisy_tokens.shape[1], device=noisy_tokens.device) < self.prompt_length
            noisy_tokens = noisy_tokens.masked_fill(in_prompt, self.demasker.config.mask_id)
        return _read(self.demasker, noisy_tokens, rows, read_length)


def _read(
    demasker: LLaDA, noisy_tokens: TokenIds, rows: PositionIndices, read_length: ReadLength | None
) -> RowLogits:
    tokens, is_read = read_part(noisy_tokens, read_length)
    return demasker(tokens, attention_mask=is_read, rows=rows)


def with_head(demask: Demask) -> Guided:
    """Return a demasker that has a causal head; refuse any other."""
    if not isinstance(demask, Guided) or demask.head is None:
        raise ValueError("in_turn needs a causal head, and this model has none for this method: use in_turn=no")
    return demask


def strengthened(demask: Demask, guidance: float) -> Demask:
    """Classifier-free guidance by registers: without + guidance * (with - without).

    Guidance 1 is the guided demasker itself. Other values need a second call, and a demasker that was also
    trained without registers (decision D14).
    """
    if guidance == 1:
        return demask

    def demask_strongly(
        noisy_tokens: TokenIds, registers: RegisterBank | None, rows: PositionIndices, *read_length: ReadLength
    ) -> RowLogits:
        # In float32: guidance multiplies the rounding of a difference of two large numbers.
        without = demask(noisy_tokens, None, rows, *read_length).float()
        return without + guidance * (demask(noisy_tokens, registers, rows, *read_length).float() - without)

    return demask_strongly


@dataclass(frozen=True)
class GuidedDenoiser:
    """g_psi(z_s, s) with perturbed-attention (decision D33), self-conditioning (D42) and autoguidance (D43).

    - Perturbed attention moves the prediction away from that of the same network with identity attention, where
      registers do not attend to each other. Scale 0 is no guidance.
    - Self-conditioning is without + scale * (with - without), where "without" is the prediction of a
      self-conditioned denoiser that does not read its previous prediction. Scale 1 is no guidance.
    - Autoguidance has the same formula; "without" is the prediction of a weaker network.

    The first two are computed in one larger batch. If several are used, their differences are added. The next step
    reads the prediction without guidance.
    """

    denoiser: Callable[..., RegisterBank]
    pag_scale: float = 0.0
    self_conditioned: bool = False
    self_cond_scale: float = 1.0
    weak: Callable[..., RegisterBank] | None = None  # self-conditioned if the denoiser is
    autoguidance: float = 1.0

    def __call__(
        self,
        noisy_registers: RegisterBank,
        time: RegisterTime,
        next_time: RegisterTime,
        last_prediction: RegisterBank,
        condition_kv: Tensor | None = None,
        weak_condition_kv: Tensor | None = None,
    ) -> Denoised:
        options: dict[str, Any] = {} if condition_kv is None else {"condition_kv": condition_kv}
        guesses = [last_prediction]  # one per prediction: the plain one, and those that guide it
        if self.pag_scale:
            guesses.append(last_prediction)
        if self.self_cond_scale != 1:
            guesses.append(torch.zeros_like(last_prediction))  # as in training
        count = len(guesses)
        if self.self_conditioned:
            options["guess"] = _joined(guesses)
        if self.pag_scale:
            row = torch.arange(count * len(time), device=time.device)
            options["identity_attention"] = row // len(time) == 1
        predictions = self.denoiser(_joined([noisy_registers] * count), _joined([time] * count), **options)
        prediction, *guiding = predictions.chunk(count)
        clean = prediction
        if self.pag_scale:
            clean = clean + self.pag_scale * (prediction - guiding[0])
        if self.self_cond_scale != 1:
            clean = clean + (self.self_cond_scale - 1) * (prediction - guiding[-1])
        if self.weak is not None and self.autoguidance != 1:
            options = {} if weak_condition_kv is None else {"condition_kv": weak_condition_kv}
            if self.self_conditioned:
                options["guess"] = last_prediction
            clean = clean + (self.autoguidance - 1) * (prediction - self.weak(noisy_registers, time, **options))
        return Denoised(clean, prediction)


@dataclass(frozen=True)
class DualGuided:
    """G(eps, h_phi(x_t), h_kappa(c)) with a guidance scale for the condition and one for the prompt (App. H, D57).

    Both are classifier-free guidance: the difference to the prediction with the null condition, or the null
    prompt, is added (scale - 1) times. Any scale but 1 takes one more call. `guided` adds the other kinds of
    guidance.
    """

    guided: GuidedDenoiser
    scales: tuple[float, ...]  # one for each of `dropped_kvs`

    def __call__(
        self,
        noisy_registers: RegisterBank,
        time: RegisterTime,
        next_time: RegisterTime,
        last_prediction: RegisterBank,
        condition_kv: Tensor,
        *dropped_kvs: Tensor,
    ) -> Denoised:
        clean, prediction = self.guided(noisy_registers, time, next_time, last_prediction, condition_kv)
        options = {"guess": last_prediction} if self.guided.self_conditioned else {}
        for scale, dropped_kv in zip(self.scales, dropped_kvs, strict=True):
            without = self.guided.denoiser(noisy_registers, time, condition_kv=dropped_kv, **options)
            clean = clean + (scale - 1) * (prediction - without)
        return Denoised(clean, prediction)


@dataclass(frozen=True)
class FlowMap:
    """A distilled denoiser (decision D51): one call per step, with the teacher's guidance inside."""

    denoiser: Callable[..., RegisterBank]

    def __call__(
        self,
        noisy_registers: RegisterBank,
        time: RegisterTime,
        next_time: RegisterTime,
        last_prediction: RegisterBank,
        condition_kv: Tensor | None = None,
    ) -> Denoised:
        options = {} if condition_kv is None else {"condition_kv": condition_kv}
        clean = self.denoiser(noisy_registers, time, end_time=next_time, **options)
        return Denoised(clean, clean)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
