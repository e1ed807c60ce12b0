"""The blocks of a demasker as the body of a register denoiser (decision D79).

A prior of registers has to know which texts are likely, and a trained demasker knows. So a denoiser can have its
blocks and start from its weights. Registers and context are one sequence, like registers and text in the demasker:

    [START, z_1, ..., z_K, END, context]

The context has positions across the text and starts as masked text.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from crocodil.models.demasker import Demasker, DemaskerConfig, sequence_angles
from crocodil.models.llada import Block, RMSNorm, init_parameters
from crocodil.processes.registers import positions_across_text
from crocodil.shapes import RegisterBank, RegisterTime

Tokens = Float[Tensor, "B K W"]

# The body reads z plus noise, up to noise of this standard deviation: about the largest that stage guided adds. At
# more noise the registers keep their norm.
_LARGEST_NOISE = 2.9


class DemaskerBody(nn.Module):
    def __init__(
        self, config: DemaskerConfig, *, num_registers: int, context_lengths: Sequence[int], text_length: int
    ) -> None:
        """Each part of the context lies across a text of `text_length` tokens."""
        super().__init__()
        self.config, self.num_registers = config, num_registers
        self.context_lengths, self.text_length = tuple(context_lengths), text_length
        backbone = config.backbone
        self.time_modulation = nn.Linear(backbone.width, 2 * backbone.width)  # scale and shift of the inputs
        self.boundaries = nn.Parameter(torch.zeros(2, backbone.width))  # START and END
        self.blocks = nn.ModuleList(Block(backbone) for _ in range(backbone.num_layers))
        self.norm = RMSNorm(backbone.width, backbone.norm_eps)

    def forward(self, registers: Tokens, time: Tokens, context: Float[Tensor, "_ C W"] | None) -> Tokens:
        """Return the states of the embedded registers; the rows of a shorter context are repeated."""
        scale, shift = self.time_modulation(time).chunk(2, dim=-1)
        start, end = (edge.to(registers.dtype).expand(len(registers), 1, -1) for edge in self.boundaries)
        parts = [start, registers * (1 + scale) + shift, end]
        if context is not None:
            repeated = context.to(registers.dtype).repeat(len(registers) // len(context), 1, 1)
            parts.append(repeated + shift.mean(dim=1, keepdim=True))
        angles = self.angles(registers.device)
        rotation = (angles.cos()[:, None], angles.sin()[:, None])
        states = torch.cat(parts, dim=1)
        for block in self.blocks:
            states = block(states, rotation, None)
        return self.norm(states[:, 1 : 1 + self.num_registers])

    def angles(self, device: torch.device) -> Float[Tensor, "1 L P"]:
        """Return the rotary angles of the sequence."""
        angles = sequence_angles(self.config, self.num_registers, self.text_length, device)
        length, first = torch.full((), self.text_length, device=device), self.num_registers + 2
        places = [first + positions_across_text(count, length) for count in self.context_lengths if count]
        return torch.cat([angles[:, :first], *(angles[:, place] for place in places)], dim=1)

    def init_weights(self, generator: torch.Generator) -> None:
        """Initialise as a new demasker; at first the time changes nothing."""
        init_parameters(self.blocks, self.config.backbone.num_layers, generator)
        nn.init.ones_(self.norm.weight)
        nn.init.normal_(self.boundaries, std=self.config.backbone.width**-0.5, generator=generator)
        nn.init.zeros_(self.time_modulation.weight)
        nn.init.zeros_(self.time_modulation.bias)

    @torch.no_grad()
    def copy_weights(self, demasker: Demasker) -> None:
        """Start from the weights of a trained demasker."""
        if self.config != demasker.config:
            raise ValueError(
                "the body of the denoiser has another shape than the demasker: use the demasker's config"
            )
        self.blocks.load_state_dict(demasker.backbone.blocks.state_dict())
        self.norm.load_state_dict(demasker.backbone.norm.state_dict())
        self.boundaries.copy_(demasker.boundaries)


def as_demasker_reads(noisy_registers: RegisterBank, signal: RegisterTime) -> RegisterBank:
    """Return z_s / signal, which is z plus noise, as Algorithm 1 gives it to the demasker."""
    smallest = (1 + _LARGEST_NOISE**2) ** -0.5
    return noisy_registers / signal.clamp(min=smallest)[..., None]
