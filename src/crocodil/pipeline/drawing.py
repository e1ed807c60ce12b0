"""Draw registers from the priors of a model, with or without a condition.

This module knows the priors and the encoder of their condition, but not the demasker.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline.canvases import NOTHING, masked_canvas
from crocodil.processes.gaussian import OnStep
from crocodil.runtime.devices import check_finite
from crocodil.sampling.call import Engine
from crocodil.sampling.configs import Drawing
from crocodil.sampling.cost import Cost
from crocodil.sampling.register_draw import Conditions, Prior, Schedule, draw_registers
from crocodil.sampling.state import Draw
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_checked
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import Tokenizer

NO_PRIOR = "this model has no prior: it encodes and decodes, and generates with method base only"
NO_CONDITIONAL = "this model has no conditional prior: use conthendisc or base, with no given text"


@dataclass(frozen=True)
class ConditionStep:
    """Encode the visible tokens for denoisers, as a function of tensors that a GPU can record as a graph."""

    encoder: RegisterEncoder
    denoisers: tuple[RegisterDenoiser, ...]
    mask_id: int

    def __call__(self, tokens: TokenIds) -> tuple[Tensor, ...]:
        """Return the condition, and its keys and values for each denoiser."""
        condition = self.encoder(tokens, hidden=tokens == self.mask_id)
        return condition, *(denoiser.cross_attention_kv(condition) for denoiser in self.denoisers)


@dataclass(frozen=True, kw_only=True)
class Priors:
    """One or two priors, and the encoder of the condition."""

    prior: RegisterDenoiser | None
    conditional: RegisterDenoiser | None
    weak: RegisterDenoiser | None = None  # guides draws from the prior of its kind (decision D43)
    encoder: RegisterEncoder
    tokenizer: Tokenizer
    retokenizer: Retokenizer | None
    engine: Engine

    def check(self, drawing: Drawing, *, has_given_text: bool) -> None:
        """Refuse draws that need a prior which the model does not have, before any call is made."""
        if self.prior is None and self.conditional is None:
            raise ValueError(NO_PRIOR)
        if self.conditional is None and (has_given_text or drawing.refresh_at):
            raise ValueError(NO_CONDITIONAL)

    def draw(self, streams: Streams, drawing: Drawing, *, length: int, on_step: OnStep | None = None) -> Draw:
        """Draw registers of a new text from the prior, for a canvas of this length."""
        prior = self.conditional if self.prior is None else self.prior
        if prior is None:
            raise ValueError(NO_PRIOR)
        denoisers, condition_kvs = self._denoisers(prior, drawing), []
        if prior is self.conditional:
            device = streams.keys.device
            condition_kvs = [self._bare_condition_kv(denoiser, length, device) for denoiser in denoisers]
        return self._draw(denoisers, drawing, drawing.prior_steps, condition_kvs, streams, on_step)

    @torch.no_grad()
    def draw_given(
        self,
        tokens: TokenIds,
        streams: Streams,
        drawing: Drawing,
        *,
        num_steps: int,
        replaced: RegisterBank | None = None,
        on_step: OnStep | None = None,
    ) -> Draw:
        """Draw registers given the visible tokens of a text; a refresh may start from the old registers."""
        if self.conditional is None:
            raise ValueError(NO_CONDITIONAL)
        denoisers = self._denoisers(self.conditional, drawing)
        condition_kvs = self._condition_kvs(denoisers, tokens)
        drawn = self._draw(denoisers, drawing, num_steps, condition_kvs, streams, on_step, replaced)
        return Draw(drawn.registers, drawn.cost + Cost(encoder_calls=1))

    def _denoisers(self, prior: RegisterDenoiser, drawing: Drawing) -> list[RegisterDenoiser]:
        """Return the prior and, for autoguidance, the weak prior if it is of the same kind."""
        if drawing.autoguidance == 1 or self.weak is None:
            return [prior]
        is_alike = self.weak.config.condition_width == prior.config.condition_width
        return [prior, self.weak] if is_alike else [prior]

    def _draw(
        self,
        denoisers: list[RegisterDenoiser],
        drawing: Drawing,
        num_steps: int,
        condition_kvs: list[Tensor],
        streams: Streams,
        on_step: OnStep | None,
        replaced: RegisterBank | None = None,
    ) -> Draw:
        prior, weak = denoisers[0], denoisers[1] if len(denoisers) > 1 else None
        if weak is None and self.weak is not None:
            drawing = replace(drawing, autoguidance=1.0)
        replaces = replaced is not None and drawing.refresh_from < 1
        return draw_registers(
            Prior.of(prior, weak),
            drawing,
            num_steps=num_steps,
            conditions=Conditions(*condition_kvs),
            replaced=None if replaced is None else prior.standardise(replaced),
            schedule=self._schedule(prior, drawing, num_steps, replaces=replaces, device=streams.keys.device),
            streams=streams,
            on_step=on_step,
            engine=self.engine,
        )

    @torch.no_grad()
    def condition(self, tokens: TokenIds) -> RegisterBank:
        """Encode the visible tokens: the condition of the conditional prior."""
        return encode_checked(self.encoder, tokens, tokens == self._mask_id, retokenizer=self.retokenizer)

    def _condition_kvs(self, denoisers: Sequence[RegisterDenoiser], tokens: TokenIds) -> list[Tensor]:
        """Return the keys and values of the condition for each denoiser."""
        if self.retokenizer is not None:  # it runs on the host
            condition = self.condition(tokens)
            return [denoiser.cross_attention_kv(condition) for denoiser in denoisers]
        step = ConditionStep(self.encoder, tuple(denoisers), self._mask_id)
        condition, *condition_kvs = self.engine.play(step, step, (tokens,))
        check_finite(condition, "the encoder's registers")
        return condition_kvs

    @property
    def _mask_id(self) -> int:
        mask_id = self.tokenizer.special.mask
        assert mask_id is not None
        return mask_id

    @torch.no_grad()
    def _bare_condition_kv(self, conditional: RegisterDenoiser, length: int, device: torch.device) -> Tensor:
        """Return the keys and values of a bare canvas, computed once: the condition of a first draw (D15)."""
        key = conditional, length
        if key not in self._bare_canvases:
            canvas = masked_canvas(NOTHING, self.tokenizer, length=length).to(device)
            self._bare_canvases[key] = conditional.cross_attention_kv(self.condition(canvas.tokens))
        return self._bare_canvases[key]

    def _schedule(
        self, prior: RegisterDenoiser, drawing: Drawing, num_steps: int, *, replaces: bool, device: torch.device
    ) -> Schedule:
        """Return the schedule of these draws, computed once: computing it waits for the device."""
        key = prior, drawing, num_steps, replaces, device
        if key not in self._schedules:
            self._schedules[key] = Schedule.of(
                Prior.of(prior), drawing, num_steps=num_steps, replaces=replaces, device=device
            )
        return self._schedules[key]

    @cached_property
    def _schedules(self) -> dict[tuple[RegisterDenoiser, Drawing, int, bool, torch.device], Schedule]:
        return {}

    @cached_property
    def _bare_canvases(self) -> dict[tuple[RegisterDenoiser, int], Tensor]:
        return {}
