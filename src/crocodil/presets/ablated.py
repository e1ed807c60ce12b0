"""Ablations of the paper's ideas, each as a change to any run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crocodil.presets.runs import PAPER_GUIDED_OBJECTIVE, PAPER_PRIOR_OBJECTIVE, with_condition
from crocodil.training.run_config import Run

PAPER_WARMUP_STEPS = 4000  # App. C: the encoder is trained alone
_LOOPS = ("base_loop", "guided_loop", "prior_loop", "conditional_loop")


def as_printed(run: Run) -> Run:
    """The paper's method as printed, without our additions, with the sizes, lengths, steps and rates of the run.

    Registers come before the text and shift it, the encoder is causal and not initialised from the base, all
    numbers k of registers are equally likely, the priors model all registers without self-conditioning, and AdamW
    is the optimiser.
    """
    prior = replace(run.prior, num_registers=run.encoder.num_registers, self_conditioned=False)
    warmup = PAPER_WARMUP_STEPS if run.guided_loop.num_steps > PAPER_WARMUP_STEPS else run.encoder_warmup_steps
    return replace(
        literal_positions(run),
        encoder=replace(run.encoder, across_text=False, causal=True),
        prior=prior,
        conditional=with_condition(prior, num_registers=run.encoder.num_registers),
        guided_objective=PAPER_GUIDED_OBJECTIVE,
        prior_objective=PAPER_PRIOR_OBJECTIVE,
        encoder_warmup_steps=warmup,
        encoder_begins_as_base=False,
        denoiser_begins_as_demasker=False,
        **{name: replace(getattr(run, name), optimiser="adamw") for name in _LOOPS},
    )


def before_text(run: Run) -> Run:
    """Registers come before the text in the demasker and after it in the encoder (App. C), not as in D26."""
    return replace(
        run,
        demasker=replace(run.demasker, across_text=False),
        encoder=replace(run.encoder, across_text=False),
    )


def literal_positions(run: Run) -> Run:
    """The registers come before the text and shift its positions, as printed in App. C (decision D16)."""
    run = before_text(run)
    return replace(run, demasker=replace(run.demasker, literal_positions=True))


def _guided(**fields: Any) -> Callable[[Run], Run]:
    return lambda run: replace(run, guided_objective=replace(run.guided_objective, **fields))


def noise_from_halfway(run: Run) -> Run:
    """Registers are noised only in the second half of stage guided: an ablation of ours (decision D66)."""
    return replace(run, register_noise_from=(run.guided_loop.num_steps + 1) // 2)


ABLATIONS: dict[str, Callable[[Run], Run]] = {
    "without register noise": _guided(register_cosine=1.0),  # Fig. 7
    "register noise from halfway": noise_from_halfway,
    "without nested dropout": _guided(nested_dropout=False),  # App. C
    "without all-mask samples": _guided(all_mask_rate=0.0),  # App. C
    "without block offsets": lambda run: replace(  # App. G
        run, prior_objective=replace(run.prior_objective, largest_offset=0.0)
    ),
    "literal two-axis RoPE": literal_positions,
    "as printed": as_printed,
}
