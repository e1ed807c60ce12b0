"""Stage distilled: priors that draw registers in a few steps, learned from the finished priors (decision D51).

A student has the shape of its teacher and also reads the time that a step goes to. The teacher's guidance is part
of what it learns, so that a step is one call.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from crocodil.metrics.register_quality import prdc_per_register
from crocodil.models.register_denoiser import Condition, RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.objectives import DistilObjective, PriorObjective, distilled_loss, mask_condition
from crocodil.processes.gaussian import Denoise
from crocodil.processes.masking import bare_canvas
from crocodil.sampling.configs import Drawing
from crocodil.sampling.guidance import GuidedDenoiser
from crocodil.sampling.register_draw import Prior, draw_registers
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, RegisterTime
from crocodil.text.encode import encode_tokens
from crocodil.text.retokenizer import Retokenizer
from crocodil.training import validation
from crocodil.training.data import CachedRegisters, Data, ValidationBatch
from crocodil.training.loop import Phase, compile_each
from crocodil.training.work import Work, distilled_flops


@dataclass(frozen=True)
class Teacher:
    """A frozen prior with its guidance. It is not part of the training state: every rank holds all of it."""

    denoiser: RegisterDenoiser
    objective: DistilObjective
    weak: RegisterDenoiser | None = None

    def given(self, condition: Condition | None, keep: Tensor | None = None) -> Denoise:
        """Return the prediction that a step of the probability flow moves to, given a condition.

        A self-conditioned teacher is given its first prediction at the same point, as in training (decision D25):
        the flow then depends on nothing but the registers and their times.
        """
        networks = [self.denoiser] if self.weak is None else [self.denoiser, self.weak]
        inputs: list[Tensor] = []
        if self.denoiser.condition_embed is not None:
            inputs = [network.cross_attention_kv(condition, keep) for network in networks]
        return partial(self._predict, inputs)

    def _predict(self, inputs: list[Tensor], noisy_registers: RegisterBank, time: RegisterTime) -> RegisterBank:
        guess = torch.zeros_like(noisy_registers)
        if self.denoiser.config.self_conditioned:
            guess = self.denoiser(noisy_registers, time, condition_kv=inputs[0] if inputs else None)
        return self._guided()(noisy_registers, time, time, guess, *inputs).clean

    def _guided(self) -> GuidedDenoiser:
        objective, self_conditioned = self.objective, self.denoiser.config.self_conditioned
        scales = (objective.pag_scale, self_conditioned, objective.self_cond_scale)
        return GuidedDenoiser(self.denoiser, *scales, self.weak, objective.autoguidance)


class BatchConditions(NamedTuple):
    """The conditions of a batch."""

    num_bare: int  # the first samples, which have a bare canvas
    bare: Condition  # one for all of them
    texts: Condition  # of the other samples
    keep: Tensor  # whether these keep it; otherwise they have none


@dataclass
class DistilledStage:
    """One student for each prior that is distilled, both trained in the same steps."""

    students: Mapping[str, RegisterDenoiser]  # by the name of the stage that trained the teacher
    teachers: Mapping[str, Teacher]
    registers: Sequence[CachedRegisters]  # one per length
    valid_registers: Sequence[CachedRegisters]
    data: Data
    mask_id: int
    encoder: RegisterEncoder | None = None  # of the condition, frozen; None: no conditional prior is distilled
    objective: DistilObjective = field(default_factory=DistilObjective)
    prior_objective: PriorObjective = field(default_factory=PriorObjective)
    retokenizer: Retokenizer | None = None
    name: str = "distilled"

    def __post_init__(self) -> None:
        self._teacher_draws: dict[str, RegisterBank] = {}  # for validation; they never change

    def modules(self) -> Mapping[str, nn.Module]:
        return self.students

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {name: list(student.parameters()) for name, student in self.students.items()}

    def phases(self) -> Sequence[Phase]:
        return (Phase(math.inf, frozenset(self.students)),)

    def repeated_blocks(self) -> Sequence[nn.Module]:
        layers = [] if self.encoder is None else list(self.encoder.backbone.layers)
        return [*(block for student in self.students.values() for block in student.repeated_blocks), *layers]

    def compile(self) -> None:
        layers = [] if self.encoder is None else list(self.encoder.backbone.layers)
        denoisers = [*self.students.values(), *(teacher.denoiser for teacher in self.teachers.values())]
        compile_each([*(part for denoiser in denoisers for part in denoiser.parts_to_compile), *layers])

    def work(self) -> Work:
        return self.data.mean_work(self._work_at)

    def length_share(self, step: int) -> float:
        return self.data.length_share(step)

    def _work_at(self, length: int) -> Work:
        flops = distilled_flops(
            {name: teacher.denoiser.config for name, teacher in self.teachers.items()},
            None if self.encoder is None else self.encoder.config,
            length=length,
            objective=self.objective,
            bare_rate=self.prior_objective.bare_rate,
        )
        return Work(length, flops)

    # ------------------------------------------------------------ the loss

    def loss(self, step: int, indices: range) -> dict[str, Tensor]:
        registers = self.registers[self.data.turn(step)].batch(
            self.data.program_ids(step, indices), self.data.device
        )
        streams = self.data.streams(step, indices)
        losses = {}
        if "prior" in self.students:
            losses["prior"] = self._loss(step, "prior", registers, streams)
        if "conditional" in self.students:
            losses["conditional"] = self._conditional_loss(step, indices, registers, streams)
        return {f"{name}_{self._loss_name(step)}": loss for name, loss in losses.items()}

    def _loss_name(self, step: int) -> str:
        return "loss"

    def _loss(
        self,
        step: int,
        name: str,
        registers: RegisterBank,
        streams: Streams,
        condition: Condition | None = None,
        keep: Tensor | None = None,
    ) -> Tensor:
        student, teacher = self.students[name], self.teachers[name]

        def jump(noisy_registers: RegisterBank, time: RegisterTime, end_time: RegisterTime) -> RegisterBank:
            return student(noisy_registers, time, end_time=end_time, condition=condition, keep_condition=keep)

        with torch.no_grad():
            teach = teacher.given(condition, keep)
        return distilled_loss(
            jump,
            teach,
            student.standardise(registers),
            objective=self.objective,
            prior_objective=self.prior_objective,
            streams=streams.at("distilled"),
        )

    def _conditional_loss(self, step: int, indices: range, registers: RegisterBank, streams: Streams) -> Tensor:
        given = self._conditions(step, indices, streams)
        num_bare = given.num_bare
        text_streams, bare_streams = Streams(streams.keys[num_bare:]), Streams(streams.keys[:num_bare])
        loss = self._loss(step, "conditional", registers[num_bare:], text_streams, given.texts, given.keep)
        if num_bare:
            bare_loss = self._loss(step, "conditional", registers[:num_bare], bare_streams, given.bare)
            loss = loss.lerp(bare_loss, num_bare / len(indices))
        return loss

    def _conditions(self, step: int, indices: range, streams: Streams) -> "BatchConditions":
        """Encode the conditions of Algorithm 4: the first samples have a bare canvas, encoded once for all."""
        objective = self.prior_objective
        num_bare = min(round(objective.bare_rate * len(indices)), len(indices) - 1)
        tokens = self.data.tokens(step, indices[num_bare:])
        streams = Streams(streams.keys[num_bare:])
        texts = self.encode(*mask_condition(tokens, objective, self.mask_id, streams))
        keep = streams.at("keep condition").uniform() >= objective.condition_drop_rate
        return BatchConditions(num_bare, self.encode(*bare_canvas(tokens, mask_id=self.mask_id)), texts, keep)

    @torch.no_grad()
    def encode(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        assert self.encoder is not None
        return encode_tokens(self.encoder, tokens, hidden, retokenizer=self.retokenizer)

    # ------------------------------------------------------------ validation

    def evaluate(self) -> dict[str, float]:
        """Compare draws with those of the teacher from the same noise, and with encoded registers."""
        metrics: dict[str, float] = {}
        for batch in self.data.validation_batches():
            registers = self.valid_registers[batch.turn].batch(batch.program_ids, self.data.device)
            for name in self.students:
                for label, condition in self._valid_conditions(name, batch).items():
                    suffix = f" of {name}{label}{batch.suffix}"
                    metrics |= self._draw_metrics(name, registers, condition, suffix)
        return metrics

    def _valid_conditions(self, name: str, batch: ValidationBatch) -> dict[str, Condition | None]:
        if name == "prior":
            return {"": None}
        bare = bare_canvas(batch.tokens, mask_id=self.mask_id)
        half = validation.mask_half(batch.tokens, mask_id=self.mask_id)
        return {"": self.encode(*bare), ", half visible": self.encode(*half)}

    def _draw_metrics(
        self, name: str, registers: RegisterBank, condition: Condition | None, suffix: str
    ) -> dict[str, float]:
        student = self.students[name]
        jump = student if condition is None else partial(student, condition=condition)
        prior = replace(Prior.of(student), denoiser=jump)
        draw = partial(
            draw_registers,
            drawing=Drawing(
                largest_offset=self.prior_objective.largest_offset, time_shift=self.prior_objective.time_shift
            ),
            streams=Streams.of("valid", samples=range(len(registers)), device=registers.device).at("draw"),
        )
        if suffix not in self._teacher_draws:
            teacher = replace(prior, denoiser=self.teachers[name].given(condition), flow_map=False)
            self._teacher_draws[suffix] = draw(teacher, num_steps=validation.NUM_DRAW_STEPS).registers
        metrics = {}
        for num_steps in sorted({1, self.objective.draw_steps}):
            drawn = draw(prior, num_steps=num_steps).registers
            distance = (drawn - self._teacher_draws[suffix]).square().mean().item()
            metrics[f"valid distance to the teacher in {num_steps} steps{suffix}"] = distance
        if len(registers) > validation.NUM_NEIGHBOURS:
            prdc = prdc_per_register(registers, drawn, nearest=validation.NUM_NEIGHBOURS).mean._asdict()
            metrics |= {f"valid {key} of drawn registers{suffix}": value for key, value in prdc.items()}
        return metrics
