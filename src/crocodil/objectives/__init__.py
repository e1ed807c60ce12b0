"""Training losses: plain masked diffusion, Algorithms 1, 4 and 5, prompts, distillation,
and the causal head.

Each function takes one batch and one stream of random numbers per sample, and returns the loss. Optimisers,
files and the training loop are elsewhere.
"""

from crocodil.objectives.demasking import (
    DemaskerObjective,
    Encode,
    Loss,
    base_loss,
    guided_step,
    sample_visible_registers,
)
from crocodil.objectives.distilled import DistilObjective, Jump, distilled_loss
from crocodil.objectives.in_turn import HeadObjective, in_turn_loss
from crocodil.objectives.matched import Judged, critic_loss, draw_steps, match_times, matching_loss
from crocodil.objectives.priors import PriorObjective, conditional_prior_loss, mask_condition, prior_loss
from crocodil.objectives.prompted import (
    PromptedBatch,
    PromptedObjective,
    prompted_demasking_loss,
    prompted_prior_loss,
)

__all__ = [
    "DemaskerObjective",
    "DistilObjective",
    "Encode",
    "HeadObjective",
    "Judged",
    "Jump",
    "Loss",
    "PriorObjective",
    "PromptedBatch",
    "PromptedObjective",
    "base_loss",
    "conditional_prior_loss",
    "critic_loss",
    "distilled_loss",
    "draw_steps",
    "guided_step",
    "in_turn_loss",
    "mask_condition",
    "match_times",
    "matching_loss",
    "prior_loss",
    "prompted_demasking_loss",
    "prompted_prior_loss",
    "sample_visible_registers",
]
