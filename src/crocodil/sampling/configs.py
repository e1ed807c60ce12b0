"""The two sampling configs: how tokens are chosen (`Decoding`) and how registers are drawn (`Drawing`).

The JSON file of a model holds one of each. To add an option, add a field here and the code that uses it: model
files, command-line options and reports loop over the fields. This module does not import torch.
"""

from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from crocodil.processes.plan import RULE_NAMES, DecodePlan, rule_name
from crocodil.runtime.config import (
    Amount,
    Guidance,
    Length,
    PagScale,
    Positive,
    PositiveShare,
    Share,
    Steps,
    Temperature,
    TopP,
    Weight,
    Width,
    checked_by,
    config,
)

Pace: TypeAlias = Literal["canvas", "text"]
InTurn: TypeAlias = Literal["no", "new", "all"]

if TYPE_CHECKING:
    from crocodil.processes.reveal import RevealRule

    Rule: TypeAlias = str | RevealRule
else:

    def _checked_rule(rule: Any) -> Any:
        if isinstance(rule, str):
            return rule_name(rule)
        if not all(hasattr(rule, name) for name in ("__call__", "reveals_quota", "may_finish_early")):
            raise ValueError(f"should be the name of a reveal rule or a `RevealRule`, not {rule!r}")
        return rule

    Rule: TypeAlias = checked_by(_checked_rule)


def knob(default: Any, help: str) -> Any:
    """A field with a sentence for the command line."""
    return field(default=default, metadata={"help": help})


@config
class Decoding:
    """How tokens are chosen: in how many calls, in which order, and how randomly."""

    calls: Length | None = knob(
        None, "Most forward passes per text. Default: one per 16 tokens (LLaDA: one per token)."
    )
    block_size: Length | None = knob(
        None, "Fill blocks of this many tokens from left to right. Default: one block (LLaDA: 32)."
    )
    rule: Rule = knob("confidence", f"Rule for which tokens a call reveals: {', '.join(RULE_NAMES)}.")
    threshold: Share | None = knob(
        None, "Instead of a rule: each call reveals all tokens with a probability above this."
    )
    temperature: Temperature = knob(0.0, "Sampling temperature; 0 takes the most probable token.")
    top_p: TopP = knob(1.0, "Nucleus sampling: use the most probable tokens with this total probability.")
    guidance: Guidance = knob(
        1.0,
        "Scale of guidance by the registers (LLaDA: by the prompt). Any value but 1 doubles the demasker calls.",
    )
    corrector: Share = knob(
        0.0, "Share of the calls that correct the text: each masks a tenth of it again and predicts it again."
    )  # D45
    pace: Pace = knob(
        "canvas", "canvas: spread the calls over all tokens. text: only over those before the predicted end."
    )  # D46
    curve: Positive = knob(
        1.0,
        "How the calls share the tokens. 1: evenly; above 1: the first calls reveal fewer, the last ones more.",
    )  # D75
    crop: Amount | None = knob(
        None,
        "Read the canvas only up to the predicted end of the text, and this many positions more. Default: all, or "
        "as the model says.",
    )  # D87
    in_turn: InTurn = knob(
        "no",
        "Draw the tokens of a call one after the other, with the causal head. new: those that the call reveals or "
        "changes; all: the whole text.",
    )  # D88
    eos_last: bool = True  # reveal an EOS token only after all tokens before it

    def __post_init__(self) -> None:
        if self.in_turn != "no" and self.guidance != 1:
            raise ValueError(f"in_turn={self.in_turn} needs guidance 1: the causal head reads one set of states")

    def plan(self, length: int) -> DecodePlan:
        """Return the blocks and calls for a canvas of this length."""
        return DecodePlan.usual(length, block_size=self.block_size, num_calls=self.calls)

    def corrector_calls(self, calls_per_block: int) -> int:
        """Return how many calls of a block correct the text; the others fill the block."""
        wanted = max(1, round(self.corrector * calls_per_block)) if self.corrector else 0
        return min(wanted, calls_per_block - 1)

    @property
    def calls_per_step(self) -> int:
        """Guidance needs the logits with and without registers."""
        return 1 if self.guidance == 1 else 2


@config
class Drawing:
    """How registers are drawn from the priors."""

    prior_steps: Steps = knob(128, "Diffusion steps when registers are drawn from the prior.")  # Sec. 5
    refresh_steps: Steps = knob(
        32, "Diffusion steps when registers are drawn from the conditional prior."
    )  # Sec. 5
    refresh_from: PositiveShare = knob(
        1.0,
        "Where a refresh starts, above 0 to 1. 1: from pure noise; less: from the old registers with noise added.",
    )  # D50
    eta: Share = knob(0.0, "Fresh noise per diffusion step: 0 is DDIM, 1 is ancestral sampling.")  # App. E
    pag_scale: PagScale = knob(
        0.0, "Scale of perturbed-attention guidance of the prior: more fluent, less varied texts."
    )  # D33
    self_cond_scale: Guidance = knob(
        1.0, "Scale of self-conditioning guidance of the prior. Any value but 1 adds a denoiser call per step."
    )  # D42
    autoguidance: Guidance = knob(
        1.0, "Scale of guidance away from the weak prior. Any value but 1 adds a denoiser call per step."
    )  # D43
    register_noise: Weight = knob(
        0.0, "Standard deviation of noise added to drawn registers, so that the demasker trusts them less."
    )  # D48
    early_stop: bool = knob(
        False, "Stop the diffusion at the noise level of --register-noise, instead of adding noise at its end."
    )  # D63
    num_registers: Width | None = knob(
        None, "Use only the first registers of each draw. Default: all, or as the model says."
    )
    refresh_at: tuple[Share, ...] = (0.5,)  # ConWithinDisc draws again after these shares of the calls (D9)
    largest_offset: Share = 0.1  # of the block offsets; must be as in training (D4)
    time_shift: Positive = 1.0  # of the diffusion times; must be as in training

    def __post_init__(self) -> None:
        if self.early_stop and not 0 < self.register_noise <= 1000:
            raise ValueError("early_stop needs a register_noise above 0, at most 1000: there the draw stops")

    @property
    def calls_per_step(self) -> int:
        """Each kind of guidance needs one more prediction."""
        return 1 + (self.pag_scale != 0) + (self.self_cond_scale != 1) + (self.autoguidance != 1)


def with_decoding_knobs(decoding: Decoding, knobs: dict[str, Any]) -> Decoding:
    """Return the config with single fields changed."""
    names = [entry.name for entry in fields(decoding)]
    if unknown := sorted(set(knobs) - set(names)):
        raise ValueError(f"no decoding option {unknown[0]!r}: take one of {', '.join(sorted(names))}")
    return replace(decoding, **knobs)


def with_knobs(decoding: Decoding, drawing: Drawing, knobs: dict[str, Any]) -> tuple[Decoding, Drawing]:
    """Return both configs with single fields changed: `{"temperature": 0.5, "prior_steps": 16}`."""
    names = [{entry.name for entry in fields(part)} for part in (decoding, drawing)]
    if unknown := sorted(set(knobs) - names[0] - names[1]):
        hint = "; prefix and suffix go into given=Given(prefix=...)" if {"prefix", "suffix"} & set(unknown) else ""
        known = ", ".join(sorted(names[0] | names[1]))
        raise ValueError(f"no sampling option {unknown[0]!r}: take one of {known}{hint}")
    changes = [{name: value for name, value in knobs.items() if name in part} for part in names]
    return replace(decoding, **changes[0]), replace(drawing, **changes[1])
