"""Stage distilled by distribution matching: students whose draws look like encoded registers (D80).

Critics and students are trained in turn: `critic_steps` steps of the critics, then one of the students.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from crocodil.metrics.register_quality import prdc_per_register
from crocodil.models.register_critic import RegisterCritic
from crocodil.models.register_denoiser import Condition
from crocodil.objectives import Judged, critic_loss, draw_steps, match_times, matching_loss
from crocodil.processes.registers import normalise, perturb
from crocodil.sampling.configs import Drawing
from crocodil.sampling.register_draw import Prior, draw_registers
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, RegisterTime
from crocodil.training import validation
from crocodil.training.distilling import DistilledStage
from crocodil.training.loop import Phase, Turn, compile_each


@dataclass
class MatchedStage(DistilledStage):
    """One student and one critic for each prior that is distilled."""

    critics: Mapping[str, RegisterCritic] = field(default_factory=dict)  # by the name of the student

    def modules(self) -> Mapping[str, nn.Module]:
        return {**self.students, **{_critic_of(name): critic for name, critic in self.critics.items()}}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {name: list(module.parameters()) for name, module in self.modules().items()}

    def phases(self) -> Sequence[Phase]:
        critics, students = frozenset(map(_critic_of, self.critics)), frozenset(self.students)
        turns = (*[Turn(critics)] * self.objective.critic_steps, Turn(students, self.objective.student_rate))
        return (Phase(math.inf, critics | students, in_turn=turns),)

    def repeated_blocks(self) -> Sequence[nn.Module]:
        criticising = [block for critic in self.critics.values() for block in critic.denoiser.repeated_blocks]
        return [*super().repeated_blocks(), *criticising]

    def compile(self) -> None:
        super().compile()
        compile_each(part for critic in self.critics.values() for part in critic.parts_to_compile)

    # ------------------------------------------------------------ the loss

    def _conditional_loss(self, step: int, indices: range, registers: RegisterBank, streams: Streams) -> Tensor:
        """All samples at once: a draw has many small steps, which are faster together."""
        num_bare, bare, texts, keep = self._conditions(step, indices, streams)
        condition = torch.cat([bare.expand(num_bare, -1, -1), texts])
        keep = torch.cat([keep.new_ones(num_bare), keep])
        return self._loss(step, "conditional", registers, streams, condition, keep)

    def _trains_critics(self, step: int) -> bool:
        return step % (self.objective.critic_steps + 1) < self.objective.critic_steps

    def _loss_name(self, step: int) -> str:
        return "critic_loss" if self._trains_critics(step) else "loss"

    def _loss(
        self,
        step: int,
        name: str,
        registers: RegisterBank,
        streams: Streams,
        condition: Condition | None = None,
        keep: Tensor | None = None,
    ) -> Tensor:
        given = {} if condition is None else {"condition": condition, "keep_condition": keep}
        student = partial(self.students[name], **given)

        def judge(noisy_registers: RegisterBank, time: RegisterTime) -> Judged:
            return Judged(*self.critics[name](noisy_registers, time, **given))

        times = match_times(registers, self.objective, self.prior_objective)
        drawn = draw_steps(student, registers.shape[1:], times, streams=streams.at("draw"))
        if self._trains_critics(step):
            return critic_loss(judge, drawn, registers, streams=streams.at("critic"))
        return matching_loss(
            student,
            self.teachers[name].given(condition, keep),
            judge,
            drawn,
            real_weight=self.objective.real_weight,
            streams=streams.at("student"),
        )

    # ------------------------------------------------------------ validation

    def _draw_metrics(
        self, name: str, registers: RegisterBank, condition: Condition | None, suffix: str
    ) -> dict[str, float]:
        """Compare draws with encoded registers, both with the noise at which draws stop."""
        if len(registers) <= validation.NUM_NEIGHBOURS:
            return {}
        student, std = self.students[name], self.objective.stop_noise
        streams = Streams.of("valid", samples=range(len(registers)), device=registers.device)
        denoise = student if condition is None else partial(student, condition=condition)
        drawn = draw_registers(
            Prior(denoise, (registers.shape[1], registers.shape[2]), fresh_noise=True),
            Drawing(
                largest_offset=self.prior_objective.largest_offset,
                time_shift=self.prior_objective.time_shift,
                early_stop=True,
                register_noise=std,
            ),
            num_steps=self.objective.draw_steps,
            streams=streams.at("draw"),
        ).registers
        noisy = perturb(registers, std=std, streams=streams.at("noise"))
        encoded = normalise(noisy) * math.sqrt(1 + std**2)
        prdc = prdc_per_register(encoded, drawn, nearest=validation.NUM_NEIGHBOURS).mean._asdict()
        return {f"valid {key} of drawn registers{suffix}": value for key, value in prdc.items()}


def _critic_of(name: str) -> str:
    return f"critic of {name}"
