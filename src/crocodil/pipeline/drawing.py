"""Registers drawn from the priors of a model: with nothing known of a text, or given those tokens that are seen.

It knows the priors, the encoder of their condition and the model's settings; of the demasker it knows nothing.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline.canvases import NOTHING, masked_canvas
from crocodil.pipeline.settings import Settings
from crocodil.sampling.algorithms import OnStep, PriorSampling, draw_registers
from crocodil.sampling.cost import Cost
from crocodil.sampling.decode import Draw, Engine
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_checked
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Priors:
    """One prior or two, and what the conditional one is given."""

    prior: RegisterDenoiser | None
    conditional: RegisterDenoiser | None
    encoder: RegisterEncoder  # of the condition
    tokenizer: Tokenizer
    retokenizer: Retokenizer | None
    settings: Settings
    engine: Engine

    def draw(self, streams: Streams, *, length: int, on_step: OnStep | None = None) -> Draw:
        prior = self.conditional if self.prior is None else self.prior
        if prior is None:
            raise ValueError(
                "this model has no prior: it encodes and decodes, and generates with method base only"
            )
        known = None
        if prior is self.conditional:
            known = {"condition_kv": self._bare_condition_kv(prior, length, streams.keys.device)}
        sampling = self._sampling(prior, self.settings.prior_steps)
        return draw_registers(prior, sampling, known=known, streams=streams, on_step=on_step, engine=self.engine)

    @torch.no_grad()
    def _bare_condition_kv(self, conditional: RegisterDenoiser, length: int, device: torch.device) -> Tensor:
        """A conditional prior alone draws given a bare canvas (decision D15), which is encoded once for ever."""
        if length not in self._bare_canvases:
            canvas = masked_canvas(NOTHING, self.tokenizer, length=length).tokens.to(device)
            self._bare_canvases[length] = conditional.cross_attention_kv(self.condition(canvas[None]))
        return self._bare_canvases[length]

    @cached_property
    def _bare_canvases(self) -> dict[int, Tensor]:
        return {}

    @torch.no_grad()
    def draw_given(
        self, tokens: TokenIds, streams: Streams, *, num_steps: int, on_step: OnStep | None = None
    ) -> Draw:
        conditional = self.conditional
        if conditional is None:
            raise ValueError("this model has no conditional prior: take conthendisc or base, with nothing given")
        drawn = draw_registers(
            conditional,
            self._sampling(conditional, num_steps),
            known={"condition_kv": conditional.cross_attention_kv(self.condition(tokens))},
            streams=streams,
            on_step=on_step,
            engine=self.engine,
        )
        return Draw(drawn.registers, drawn.cost + Cost(encoder_calls=1))

    @torch.no_grad()
    def condition(self, tokens: TokenIds) -> RegisterBank:
        mask_id = self.tokenizer.special.mask
        assert mask_id is not None
        return encode_checked(self.encoder, tokens, tokens == mask_id, retokenizer=self.retokenizer)

    def _sampling(self, prior: RegisterDenoiser, num_steps: int) -> PriorSampling:
        return PriorSampling(
            num_registers=prior.config.num_registers,
            register_width=prior.config.register_width,
            num_steps=num_steps,
            largest_offset=self.settings.largest_offset,
            time_shift=self.settings.time_shift,
            eta=self.settings.eta,
            coherence=self.settings.coherence,
            self_conditioned=prior.config.self_conditioned,
        )
