"""The guided demasker f_theta(x_t, z_0): LLaDA with registers before the text (App. C).

    [START, z_1, ..., z_K, END, E(x_t)]

START, registers and END stand in register slots, whose number does not depend on k. Each sample uses only its
first k registers (k is `prefix_length`). The others are masked in attention, which has the same effect as removing
them (decision D17). Register noise and nested dropout are applied elsewhere.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from crocodil.models.llada import LLaDA, LLaDAConfig, picked, read_part, rotary_frequencies
from crocodil.processes.registers import positions_across_text, within_prefix
from crocodil.runtime.config import Share, Width, config
from crocodil.shapes import (
    Logits,
    PositionIndices,
    Positions,
    PrefixLength,
    ReadLength,
    RegisterBank,
    RowLogits,
    TokenIds,
)


@config
class DemaskerConfig:
    backbone: LLaDAConfig
    num_registers: Width = 128  # Sec. 5
    register_width: Width = 1024  # Sec. 5
    prefix_axis_share: Share = 1 / 8  # share of the frequency pairs, the lowest ones (decision D23)
    literal_positions: bool = False  # registers shift the text positions, as App. C states (D16)
    across_text: bool = False  # register positions are spread over the text, not before it (decision D26)

    def __post_init__(self) -> None:
        if self.literal_positions and self.across_text:
            raise ValueError("literal_positions and across_text exclude each other: set one of them")


class Demasker(nn.Module):
    def __init__(self, config: DemaskerConfig, backbone: LLaDA | None = None) -> None:
        super().__init__()
        if backbone is not None and backbone.config != config.backbone:
            raise ValueError("config.backbone differs from the config of the given backbone")
        self.config = config
        self.backbone = LLaDA(config.backbone) if backbone is None else backbone
        width = config.backbone.width
        self.register_map = nn.Linear(config.register_width, width, bias=False)  # decision D6
        self.boundaries = nn.Parameter(torch.zeros(2, width))  # START and END

    @classmethod
    def around(cls, backbone: LLaDA, config: DemaskerConfig, generator: torch.Generator) -> "Demasker":
        """Return a demasker with the weights of a trained LLaDA and a new interface to registers."""
        like = backbone.embed.weight
        demasker = cls(config, backbone).to(device=like.device, dtype=like.dtype)
        return demasker.init_interface(generator)

    def forward(
        self,
        noisy_tokens: TokenIds,
        registers: RegisterBank,
        *,
        prefix_length: PrefixLength | None = None,
        rows: Positions | PositionIndices | None = None,
        read_length: ReadLength | None = None,
    ) -> Logits | RowLogits:
        """Return logits at all text positions, or only at those in `rows`."""
        states = self.states(noisy_tokens, registers, prefix_length=prefix_length, read_length=read_length)
        return self.backbone.logits(states if rows is None else picked(states, rows))

    def states(
        self,
        noisy_tokens: TokenIds,
        registers: RegisterBank,
        *,
        prefix_length: PrefixLength | None = None,
        read_length: ReadLength | None = None,
    ) -> Float[Tensor, "B _ W"]:
        """Return the states that predict the tokens, at the text positions that are read.

        The bank may hold only the first registers (`registers[:, :k]`). `prefix_length` limits it further per
        sample; 0 leaves only START and END. With `read_length`, only the first tokens of each canvas are read.
        """
        num_given = registers.shape[1]
        if num_given > self.config.num_registers:
            raise ValueError(
                f"{num_given} registers given, but this demasker takes at most {self.config.num_registers}"
            )
        canvas_length = noisy_tokens.shape[1]
        noisy_tokens, is_read = read_part(noisy_tokens, read_length)
        num_text = noisy_tokens.shape[1]
        visible = None if prefix_length is None else within_prefix(prefix_length, num_given)
        embeddings = torch.cat([self._prefix(registers, visible), self.backbone.embed(noisy_tokens)], dim=1)
        angles = sequence_angles(
            self.config, num_given, canvas_length, noisy_tokens.device, prefix_length=prefix_length
        )[:, : num_given + 2 + num_text]
        key_mask = None
        if visible is not None or is_read is not None:
            edge = torch.ones_like(noisy_tokens[:, :1], dtype=torch.bool)  # START or END
            visible = edge.expand(-1, num_given) if visible is None else visible
            is_read = edge.expand(-1, num_text) if is_read is None else is_read
            key_mask = torch.cat([edge, visible, edge, is_read], dim=1)
        return self.backbone.transform(embeddings, angles, key_mask)[:, -num_text:]

    def init_weights(self, generator: torch.Generator) -> "Demasker":
        self.backbone.init_weights(generator)
        return self.init_interface(generator)

    def init_interface(self, generator: torch.Generator) -> "Demasker":
        """Initialise the parameters that LLaDA lacks; projected registers start as large as token embeddings."""
        token_std = self.backbone.embed.weight.float().std().item()
        nn.init.normal_(self.boundaries, std=token_std, generator=generator)
        map_std = token_std / self.config.register_width**0.5  # register entries have unit variance
        nn.init.normal_(self.register_map.weight, std=map_std, generator=generator)
        return self

    def interface(self) -> list[nn.Parameter]:
        """Return the parameters that are trained with the encoder during warm-up (decision D21)."""
        return [*self.register_map.parameters(), self.boundaries]

    def _prefix(self, registers: RegisterBank, visible: Tensor | None) -> Float[Tensor, "B _ W"]:
        if visible is not None:
            # Attention gives hidden registers weight 0, but 0 x NaN would still be NaN.
            registers = registers.masked_fill(~visible[..., None], 0)
        mapped = self.register_map(registers.to(self.register_map.weight.dtype))
        start, end = (edge.to(mapped.dtype).expand(len(registers), 1, -1) for edge in self.boundaries)
        return torch.cat([start, mapped, end], dim=1)


def sequence_angles(
    config: DemaskerConfig,
    num_given: int,
    num_text: int,
    device: torch.device,
    *,
    prefix_length: PrefixLength | None = None,
) -> Float[Tensor, "_ L P"]:
    """Return the angles of two-axis RoPE: the lowest frequencies use the index within the register slots."""
    if config.literal_positions:
        along_text, along_prefix = literal_axes(num_given, num_text, prefix_length, device)
    else:
        along_text, along_prefix = fixed_axes(config.num_registers, num_given, num_text, device)
        if config.across_text:
            num_tokens = torch.full((), num_text, device=device)
            along_text = along_text.clone()
            along_text[:, 1 : 1 + num_given] = positions_across_text(config.num_registers, num_tokens)[:num_given]
    frequencies = rotary_frequencies(config.backbone, device)
    num_local = round(config.prefix_axis_share * len(frequencies))
    local = torch.arange(len(frequencies), device=device) >= len(frequencies) - num_local
    return torch.where(local, along_prefix[..., None], along_text[..., None]) * frequencies


Axes = tuple[Int[Tensor, "_ L"], Int[Tensor, "_ L"]]


def fixed_axes(num_registers: int, num_given: int, num_text: int, device: torch.device) -> Axes:
    """Return every position's global index and its index within the slots; the default reading of App. C (D16).

    Text keeps the positions 0, 1, 2 ... that it has without registers. The slots have negative positions, which do
    not depend on k or on the number of registers given: START is at -(K + 2), END at -1.
    """
    slots = torch.arange(num_given + 1, device=device)  # START and registers
    end = torch.full((1,), num_registers + 1, device=device)
    local = torch.cat([slots, end])
    text = torch.arange(num_text, device=device)
    return torch.cat([local - (num_registers + 2), text])[None], torch.cat([local, text])[None]


def literal_axes(num_given: int, num_text: int, prefix_length: PrefixLength | None, device: torch.device) -> Axes:
    """Return both indices under the literal reading of App. C: one index runs through slots and text.

    END and the text follow the last visible register. Both axes use the same index.
    """
    if prefix_length is None:
        prefix_length = torch.full((1,), num_given, device=device)
    slots = torch.arange(num_given + 1, device=device).expand(len(prefix_length), -1)
    after = 1 + prefix_length[:, None] + torch.arange(num_text + 1, device=device)
    positions = torch.cat([slots, after], dim=1)
    return positions, positions
