"""Registers drawn from the priors of a model, with or without a condition.

It knows the priors and the encoder of their condition, not the demasker.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline.canvases import NOTHING, masked_canvas
from crocodil.processes.gaussian import OnStep
from crocodil.sampling.algorithms import draw_registers
from crocodil.sampling.configs import Drawing
from crocodil.sampling.cost import Cost
from crocodil.sampling.decode import Engine
from crocodil.sampling.state import Draw
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_checked
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Priors:
    """One prior or two, and the encoder of the condition."""

    prior: RegisterDenoiser | None
    conditional: RegisterDenoiser | None
    encoder: RegisterEncoder
    tokenizer: Tokenizer
    retokenizer: Retokenizer | None
    engine: Engine

    def draw(self, streams: Streams, drawing: Drawing, *, length: int, on_step: OnStep | None = None) -> Draw:
        """Draw registers of a text like those of the training data, for a canvas of this length."""
        prior = self.conditional if self.prior is None else self.prior
        if prior is None:
            raise ValueError(
                "this model has no prior: it encodes and decodes, and generates with method base only"
            )
        condition_kv = None
        if prior is self.conditional:
            condition_kv = self._bare_condition_kv(prior, length, streams.keys.device)
        return self._draw(prior, drawing, drawing.prior_steps, condition_kv, streams, on_step)

    @torch.no_grad()
    def draw_given(
        self,
        tokens: TokenIds,
        streams: Streams,
        drawing: Drawing,
        *,
        num_steps: int,
        on_step: OnStep | None = None,
    ) -> Draw:
        """Draw registers given the visible tokens of a text."""
        if self.conditional is None:
            raise ValueError("this model has no conditional prior: use conthendisc or base, with no given text")
        condition_kv = self.conditional.cross_attention_kv(self.condition(tokens))
        drawn = self._draw(self.conditional, drawing, num_steps, condition_kv, streams, on_step)
        return Draw(drawn.registers, drawn.cost + Cost(encoder_calls=1))

    def _draw(
        self,
        prior: RegisterDenoiser,
        drawing: Drawing,
        num_steps: int,
        condition_kv: Tensor | None,
        streams: Streams,
        on_step: OnStep | None,
    ) -> Draw:
        return draw_registers(
            prior,
            drawing,
            shape=(prior.config.num_registers, prior.config.register_width),
            num_steps=num_steps,
            self_conditioned=prior.config.self_conditioned,
            unstandardise=prior.unstandardise,
            condition_kv=condition_kv,
            streams=streams,
            on_step=on_step,
            engine=self.engine,
        )

    @torch.no_grad()
    def condition(self, tokens: TokenIds) -> RegisterBank:
        """Encode the visible tokens: the condition of the conditional prior."""
        mask_id = self.tokenizer.special.mask
        assert mask_id is not None
        return encode_checked(self.encoder, tokens, tokens == mask_id, retokenizer=self.retokenizer)

    @torch.no_grad()
    def _bare_condition_kv(self, conditional: RegisterDenoiser, length: int, device: torch.device) -> Tensor:
        """A conditional prior without a plain one draws given a bare canvas (D15), which is encoded once."""
        if length not in self._bare_canvases:
            canvas = masked_canvas(NOTHING, self.tokenizer, length=length).to(device)
            self._bare_canvases[length] = conditional.cross_attention_kv(self.condition(canvas.tokens))
        return self._bare_canvases[length]

    @cached_property
    def _bare_canvases(self) -> dict[int, Tensor]:
        return {}
