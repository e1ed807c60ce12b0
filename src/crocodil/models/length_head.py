"""Predict the length of an answer from its prompt, because users cannot know it (decision D57)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from crocodil.runtime.config import Length, Width, config


@config
class LengthHeadConfig:
    prompt_width: Width  # of the prompt's registers
    max_length: Length  # tokens of the longest answer
    answer_length: Length  # tokens of the canvas on which an answer is encoded
    prompt_length: Length  # tokens of the canvas on which a prompt is encoded
    width: Width = 256


class LengthHead(nn.Module):
    """p(number of tokens | h_kappa(c)): a categorical distribution over 1 to `max_length`."""

    def __init__(self, config: LengthHeadConfig) -> None:
        super().__init__()
        self.config = config
        self.proj_in = nn.Linear(2 * config.prompt_width, config.width)
        self.proj_out = nn.Linear(config.width, config.max_length)

    def forward(self, prompt: Float[Tensor, "B C E"]) -> Float[Tensor, "B L"]:
        """Return the logits of the lengths 1, 2, ..., from the summary register and the mean of all registers."""
        features = torch.cat([prompt[:, 0], prompt.mean(dim=1)], dim=-1).to(self.proj_in.weight.dtype)
        return self.proj_out(F.gelu(self.proj_in(features), approximate="tanh"))

    def quantiles(self, prompt: Float[Tensor, "1 C E"], shares: Float[Tensor, "S"]) -> Int[Tensor, "S"]:
        """Return the quantiles of the length at these probabilities."""
        mass = self(prompt)[0].double().softmax(dim=-1).cumsum(dim=-1)
        return (torch.searchsorted(mass, shares.to(mass)) + 1).clamp(max=self.config.max_length)

    def init_weights(self, generator: torch.Generator) -> "LengthHead":
        """Initialise; at first all lengths are equally likely."""
        nn.init.xavier_uniform_(self.proj_in.weight, generator=generator)
        for parameter in (self.proj_in.bias, self.proj_out.weight, self.proj_out.bias):
            nn.init.zeros_(parameter)
        return self
