"""The critic of distribution matching (decision D80): a denoiser of drawn registers with a second head.

It serves training only: a model does not contain it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.shapes import PerSample, RegisterBank, RegisterTime


class RegisterCritic(nn.Module):
    def __init__(self, denoiser: RegisterDenoiser) -> None:
        """The critic begins as this denoiser, a copy of the prior that it is compared with."""
        super().__init__()
        self.denoiser, width = denoiser, denoiser.config.width
        self.classifier = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(
        self, noisy_registers: RegisterBank, diffusion_time: RegisterTime, **inputs: Any
    ) -> tuple[RegisterBank, PerSample]:
        """Predict the clean registers, and return logits: above 0 for encoded, below 0 for drawn registers."""
        predicted, states = self.denoiser.with_states(noisy_registers, diffusion_time, **inputs)
        logits: Tensor = self.classifier(states)
        return predicted, logits.float().mean(dim=(1, 2))

    @property
    def parts_to_compile(self) -> Sequence[nn.Module]:
        """As in a denoiser: the blocks of a body, or the whole critic."""
        return [self] if self.denoiser.body is None else self.denoiser.parts_to_compile

    def init_classifier(self, generator: torch.Generator) -> "RegisterCritic":
        """Initialise the second head: at first its logits are 0."""
        for module in self.classifier.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                nn.init.zeros_(module.bias)
        last = self.classifier[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        return self
