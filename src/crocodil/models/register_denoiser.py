"""The register denoiser g_psi(z_s, s): a PixArt-style transformer over register tokens (App. E).

One network computes the time modulation for all layers (adaLN-single, Chen et al., 2023, arXiv:2310.00426). Every
register has its own time, so block offsets need no special case. The condition is read by cross-attention; a
prompt can be a second condition (App. H). The network predicts the clean registers and does not depend on the
noise schedule.

A denoiser may have the blocks of a demasker instead, its `body` (models/demasker_body.py). Such a network does
depend on the noise schedule: it reads z_s / signal, as a demasker does, and its blocks predict the difference to
signal z_s.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from crocodil.models.demasker import DemaskerConfig
from crocodil.models.demasker_body import DemaskerBody, as_demasker_reads
from crocodil.models.denoiser_blocks import (
    Block,
    ConditionEmbedding,
    Tokens,
    modulate,
    time_embedding,
    time_features,
)
from crocodil.processes.gaussian import signal_and_noise_level
from crocodil.runtime.config import Amount, Layers, Length, Width, config
from crocodil.shapes import RegisterBank, RegisterTime

Condition = Float[Tensor, "_ C E"]  # one per sample, or one shared by all samples
# Mean and standard deviation of each coordinate. One tensor, since matrices may be rounded for storage.
Statistics = Float[Tensor, "2 K D"]


@config
class RegisterDenoiserConfig:
    num_registers: Width = 8  # the prior models the first registers only (decision D19)
    register_width: Width = 1024
    width: Width = 1024
    num_layers: Layers = 28  # App. E
    num_heads: Width = 16
    mlp_ratio: Width = 4
    condition_width: Width | None = None  # width of the condition vectors; None: no cross-attention
    condition_length: Amount = 0  # number of condition vectors
    prompt_width: Width | None = None  # width of the prompt's vectors h_kappa(c); None: no prompt (decision D57)
    prompt_length: Amount = 0  # number of them
    self_conditioned: bool = False  # reads its prediction of the previous step (decision D25)
    standardised: bool = False  # models registers of mean 0 and standard deviation 1 per coordinate (decision D40)
    flow_map: bool = False  # also reads the time that a step goes to: a distilled denoiser (decision D51)
    fresh_noise: bool = False  # its steps add fresh noise: distilled by distribution matching (decision D80)
    body: DemaskerConfig | None = None  # the blocks are those of this demasker (decision D79); None: PixArt's
    text_length: Length = 256  # of the canvas that gives registers and condition their positions in a body

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} does not split into {self.num_heads} heads")
        if (self.condition_width is None) != (self.condition_length == 0):
            raise ValueError("a condition has both a width and a length, or neither")
        if (self.prompt_width is None) != (self.prompt_length == 0):
            raise ValueError("a prompt has both a width and a length, or neither")
        if self.prompt_width is not None and self.condition_width is None:
            raise ValueError("a denoiser with a prompt also has a condition, which may be dropped")
        if self.is_distilled and self.self_conditioned:
            raise ValueError("a distilled denoiser is not self_conditioned: one step is one call")
        if self.flow_map and self.fresh_noise:
            raise ValueError("flow_map and fresh_noise are both set: a denoiser is distilled in one of two ways")
        if self.body is not None:
            self._check_body(self.body)

    def _check_body(self, body: DemaskerConfig) -> None:
        for name in ("width", "num_layers", "num_heads"):
            if getattr(self, name) != getattr(body.backbone, name):
                ours, its = getattr(self, name), getattr(body.backbone, name)
                raise ValueError(f"{name} is {ours}, in the body {its}: set {name} to {its}")
        if self.register_width != body.register_width or self.num_registers > body.num_registers:
            raise ValueError(
                f"the body reads registers of another width, or fewer of them: it has {body.num_registers} x "
                f"{body.register_width}"
            )
        if self.standardised:
            raise ValueError("a body reads registers in their own units: set standardised=false")

    @property
    def is_distilled(self) -> bool:
        return self.flow_map or self.fresh_noise

    @property
    def num_positions(self) -> int:
        """The positions that the blocks run over."""
        if self.body is None:
            return self.num_registers
        return self.num_registers + 2 + self.condition_length + self.prompt_length


class RegisterDenoiser(nn.Module):
    def __init__(self, config: RegisterDenoiserConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.proj_in = nn.Linear(config.register_width, width)
        self.proj_guess = nn.Linear(config.register_width, width, bias=False) if config.self_conditioned else None
        self.pos_embed = nn.Parameter(torch.zeros(config.num_registers, width))
        self.time = time_embedding(width)
        self.span = time_embedding(width) if config.flow_map else None
        self.body: DemaskerBody | None = None
        if config.body is None:
            self.time_modulation = nn.Linear(width, 6 * width)
            self.blocks = nn.ModuleList(
                Block(width, config.num_heads, config.mlp_ratio, has_context=config.condition_width is not None)
                for _ in range(config.num_layers)
            )
            self.final_table = nn.Parameter(torch.zeros(2, width))
        else:
            self.body = DemaskerBody(
                config.body,
                num_registers=config.num_registers,
                context_lengths=(config.condition_length, config.prompt_length),
                text_length=config.text_length,
            )
        self.proj_out = nn.Linear(width, config.register_width)
        self.condition_embed = ConditionEmbedding.of(config.condition_length, config.condition_width, width)
        self.prompt_embed = ConditionEmbedding.of(config.prompt_length, config.prompt_width, width)
        self.statistics: Statistics | None
        identity = torch.zeros(2, config.num_registers, config.register_width)  # means
        identity[1].fill_(1)  # standard deviations
        self.register_buffer("statistics", identity if config.standardised else None)

    def forward(self, noisy_registers: RegisterBank, diffusion_time: RegisterTime, **inputs: Any) -> RegisterBank:
        """Predict the clean registers; `with_states` describes the other inputs."""
        return self.with_states(noisy_registers, diffusion_time, **inputs)[0]

    def with_states(
        self,
        noisy_registers: RegisterBank,
        diffusion_time: RegisterTime,
        *,
        end_time: RegisterTime | None = None,
        guess: RegisterBank | None = None,
        condition: Condition | None = None,
        keep_condition: Bool[Tensor, "_"] | None = None,
        prompt: Condition | None = None,
        keep_prompt: Bool[Tensor, "_"] | None = None,
        condition_kv: Float[Tensor, "_ *context"] | None = None,
        identity_attention: Bool[Tensor, "B"] | None = None,
    ) -> tuple[RegisterBank, Tokens]:
        """Predict the clean registers; also return the states of the last block that the prediction comes from.

        All banks are in the units of the prior (`standardise`).

        Args:
            noisy_registers: z_s.
            diffusion_time: the time of every register, 0 clean and 1 noise.
            end_time: the time that the step goes to, for a flow map: a DDIM step with this prediction ends where
                the probability flow does (decision D51). If not given, it is `diffusion_time`.
            guess: the prediction of the previous step, for a self-conditioned denoiser; zero if not given.
            condition: the registers of the visible tokens. If it has fewer rows than the batch, its rows are
                repeated. Without a condition, a conditional denoiser uses its trained null condition, so that
                one network can serve as both priors (decision D15).
            keep_condition: False replaces a row of the condition by the null condition.
            prompt: h_kappa(c), the registers of the prompt (App. H), if the denoiser reads one; like `condition`.
            keep_prompt: False replaces a row of the prompt by the null prompt.
            condition_kv: the result of `cross_attention_kv`, used instead of `condition` and `prompt`.
            identity_attention: True for samples whose registers attend only to themselves (decision D33).
        """
        self._check_inputs(noisy_registers, guess, condition, prompt, identity_attention)
        signal = None if self.body is None else signal_and_noise_level(diffusion_time)[0]
        read = noisy_registers if signal is None else as_demasker_reads(noisy_registers, signal)
        embedded = self.proj_in(read.to(self.proj_in.weight.dtype))
        if guess is not None and self.proj_guess is not None:
            embedded = embedded + self.proj_guess(guess.to(self.proj_guess.weight.dtype))
        tokens = embedded + self.pos_embed.to(embedded.dtype)  # half precision under autocast, also in the blocks
        time = self._embed_times(diffusion_time, end_time, tokens.dtype)
        context = condition_kv
        if self.condition_embed is not None and condition_kv is None:
            context = self._context(condition, keep_condition, prompt, keep_prompt)
        if self.body is None or signal is None:
            states = self._modulated(tokens, time, context, identity_attention)
            return self.proj_out(states).to(noisy_registers.dtype), states
        # Of registers with unit variance, the best linear prediction is signal z_s: the blocks predict the rest.
        states = self.body(tokens, time, context)
        predicted = signal[..., None] * noisy_registers + self.proj_out(states)
        return predicted.to(noisy_registers.dtype), states

    def _check_inputs(
        self,
        noisy_registers: RegisterBank,
        guess: RegisterBank | None,
        condition: Condition | None,
        prompt: Condition | None,
        identity_attention: Bool[Tensor, "_"] | None,
    ) -> None:
        """Refuse inputs that this denoiser was not built for."""
        if noisy_registers.shape[1:] != (self.config.num_registers, self.config.register_width):
            raise ValueError(
                f"registers of shape {tuple(noisy_registers.shape[1:])} do not fit a denoiser of "
                f"{self.config.num_registers} x {self.config.register_width}"
            )
        if guess is not None and self.proj_guess is None:
            raise ValueError("this denoiser has no self-conditioning: call it without a guess")
        if condition is not None and self.condition_embed is None:
            raise ValueError("this denoiser has no cross-attention: call it without a condition")
        if prompt is not None and self.prompt_embed is None:
            raise ValueError("this denoiser was trained without prompts: call it without one")
        if identity_attention is not None and self.body is not None:
            raise ValueError("a denoiser with the blocks of a demasker has no identity attention: use pag_scale=0")

    def _modulated(
        self,
        tokens: Tokens,
        time: Tokens,
        context: Tensor | None,
        identity_attention: Bool[Tensor, "B"] | None,
    ) -> Tokens:
        """Apply PixArt's blocks; the context is embedded, or the keys and values of all layers."""
        modulation = rearrange(self.time_modulation(F.silu(time)), "b k (s w) -> b k s w", s=6)
        for layer, block in enumerate(self.blocks):
            layer_context = context if context is None or context.ndim == 3 else context[layer]
            tokens = block(tokens, modulation, layer_context, identity_attention)
        shift, scale = (self.final_table.to(time.dtype) + time[:, :, None]).unbind(dim=2)
        return modulate(tokens, shift, scale)

    def _embed_times(
        self, time: RegisterTime, end_time: RegisterTime | None, dtype: torch.dtype
    ) -> Float[Tensor, "B K W"]:
        embedded = self.time(time_features(time).to(dtype))
        if self.span is None:
            if end_time is not None:
                raise ValueError("this denoiser is no flow map: call it without end_time")
            return embedded
        span = torch.zeros_like(time) if end_time is None else time - end_time
        return embedded + self.span(time_features(span).to(dtype))

    def _context(
        self,
        condition: Condition | None,
        keep_condition: Bool[Tensor, "B"] | None,
        prompt: Condition | None,
        keep_prompt: Bool[Tensor, "B"] | None,
    ) -> Float[Tensor, "_ X W"]:
        """Return what the registers attend to: the embedded condition and, beside it, the embedded prompt."""
        assert self.condition_embed is not None
        context = self.condition_embed(condition, keep_condition)
        if self.prompt_embed is None:
            return context
        parts = [context, self.prompt_embed(prompt, keep_prompt)]
        count = max(map(len, parts))  # a part that all samples share has one row
        return torch.cat([part.expand(count, -1, -1) for part in parts], dim=1)

    def cross_attention_kv(
        self,
        condition: Condition | None,
        keep_condition: Bool[Tensor, "B"] | None = None,
        *,
        prompt: Condition | None = None,
        keep_prompt: Bool[Tensor, "B"] | None = None,
    ) -> Float[Tensor, "_ *context"]:
        """Precompute the keys and values of condition and prompt for all layers; they do not change between steps.

        They cost more than the few registers themselves. None stands for the null condition or prompt. In a body
        they depend on the registers: then it is the embedded condition that is precomputed.
        """
        context = self._context(condition, keep_condition, prompt, keep_prompt)
        if self.body is not None:
            return context
        cross_attentions = [block.cross for block in self.blocks if isinstance(block, Block)]
        return torch.stack([cross.keys_and_values(context) for cross in cross_attentions if cross is not None])

    @property
    def repeated_blocks(self) -> nn.ModuleList:
        """The blocks that hold most of the weights: PixArt's, or those of the body."""
        return self.blocks if self.body is None else self.body.blocks

    @property
    def parts_to_compile(self) -> Sequence[nn.Module]:
        """A small denoiser is compiled whole; one with a body is not, since equal blocks share compiled code."""
        return [self] if self.body is None else list(self.body.blocks)

    def standardise(self, registers: RegisterBank) -> RegisterBank:
        """Convert encoded registers to the units of the prior; without statistics nothing changes."""
        if self.statistics is None:
            return registers
        mean, std = self.statistics.float()
        return ((registers - mean) / std).to(registers.dtype)

    def unstandardise(self, registers: RegisterBank) -> RegisterBank:
        """Undo `standardise`: convert drawn registers to the units of the encoder."""
        if self.statistics is None:
            return registers
        mean, std = self.statistics.float()
        return (registers * std + mean).to(registers.dtype)

    def init_weights(self, generator: torch.Generator) -> "RegisterDenoiser":
        """Initialise so that every block is close to the identity and the prediction is zero.

        With a body, the blocks are those of a new demasker, and the prediction is the best linear one.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for name, parameter in self.named_parameters():
            if name.endswith("table"):
                nn.init.normal_(parameter, std=self.config.width**-0.5, generator=generator)
            elif name.endswith(("cross.out.weight", "proj_out.weight", "proj_guess.weight", "span.2.weight")):
                nn.init.zeros_(parameter)
            elif name.endswith("pos_embed") or (name.startswith(("time", "span")) and parameter.ndim == 2):
                nn.init.normal_(parameter, std=0.02, generator=generator)
            elif name.endswith("null"):  # a register's entries have unit variance
                nn.init.normal_(parameter, generator=generator)
        if self.body is not None:
            self.body.init_weights(generator)
        return self
