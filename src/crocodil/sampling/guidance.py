"""The networks as the samplers call them, with guidance inside.

`Demask` is f_theta: canvas and registers in, logits at the wanted positions out. `Denoise` (`processes.gaussian`)
is g_psi. Plans, reveal rules, randomness and costs are not known here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.processes.gaussian import Denoised
from crocodil.shapes import PositionIndices, RegisterBank, RegisterTime, RowLogits, TokenIds

Demask: TypeAlias = Callable[[TokenIds, RegisterBank | None, PositionIndices], RowLogits]


@dataclass(frozen=True)
class Unguided:
    """The base MDM: it ignores registers."""

    demasker: LLaDA

    def __call__(self, noisy_tokens: TokenIds, registers: RegisterBank | None, rows: PositionIndices) -> RowLogits:
        return self.demasker(noisy_tokens, rows=rows)


@dataclass(frozen=True)
class Guided:
    """The guided demasker; without registers it runs with an empty prefix (decision D14)."""

    demasker: Demasker

    def __call__(self, noisy_tokens: TokenIds, registers: RegisterBank | None, rows: PositionIndices) -> RowLogits:
        if registers is None:
            empty = (len(noisy_tokens), 0, self.demasker.config.register_width)
            registers = torch.zeros(empty, device=noisy_tokens.device)
        return self.demasker(noisy_tokens, registers, rows=rows)


@dataclass(frozen=True)
class PromptGuided:
    """A base that is guided by its prompt instead of registers; without "registers", the prompt is masked.

    With `strengthened`, this is LLaDA's classifier-free guidance: its scale s is guidance s + 1.
    """

    demasker: LLaDA
    prompt_length: int

    def __call__(self, noisy_tokens: TokenIds, registers: RegisterBank | None, rows: PositionIndices) -> RowLogits:
        if registers is None:
            in_prompt = torch.arange(noisy_tokens.shape[1], device=noisy_tokens.device) < self.prompt_length
            noisy_tokens = noisy_tokens.masked_fill(in_prompt, self.demasker.config.mask_id)
        return self.demasker(noisy_tokens, rows=rows)


def strengthened(demask: Demask, guidance: float) -> Demask:
    """Classifier-free guidance by registers: without + guidance * (with - without).

    1 is the guided demasker itself. Other values need a second call, and a demasker that was trained with empty
    prefixes (decision D14).
    """
    if guidance == 1:
        return demask

    def demask_strongly(
        noisy_tokens: TokenIds, registers: RegisterBank | None, rows: PositionIndices
    ) -> RowLogits:
        without = demask(noisy_tokens, None, rows)
        return without + guidance * (demask(noisy_tokens, registers, rows) - without)

    return demask_strongly


@dataclass(frozen=True)
class GuidedDenoiser:
    """g_psi(z_s, s) with perturbed-attention guidance (decision D33).

    The prediction is moved away from that of the same network with identity attention, where registers do not
    attend to each other. Both come from one batch of twice the size. A self-conditioned denoiser is given its own
    last prediction, without guidance.
    """

    denoiser: Callable[..., RegisterBank]
    pag_scale: float = 0.0
    self_conditioned: bool = False

    def __call__(
        self,
        noisy_registers: RegisterBank,
        time: RegisterTime,
        last_prediction: RegisterBank,
        condition_kv: Tensor | None = None,
    ) -> Denoised:
        options: dict[str, Any] = {} if condition_kv is None else {"condition_kv": condition_kv}
        if self.self_conditioned:
            options["guess"] = last_prediction
        if not self.pag_scale:
            prediction = self.denoiser(noisy_registers, time, **options)
            return Denoised(prediction, prediction)
        if self.self_conditioned:
            options["guess"] = torch.cat([last_prediction, last_prediction])
        both = self.denoiser(
            torch.cat([noisy_registers, noisy_registers]),
            torch.cat([time, time]),
            identity_attention=torch.arange(2 * len(time), device=time.device) >= len(time),
            **options,
        )
        prediction, perturbed = both.chunk(2)
        return Denoised(prediction + self.pag_scale * (prediction - perturbed), prediction)
