"""Losses for answers to prompts (App. H): of the prior of their registers, and of the demasker."""

from typing import NamedTuple

import torch.nn.functional as F

from crocodil.models.demasker import Demasker
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.objectives.demasking import (
    DemaskerObjective,
    Encode,
    Loss,
    guided_loss,
    mask_some_fully,
    sample_guide,
)
from crocodil.objectives.priors import PriorObjective, denoise, diffuse, mask_condition
from crocodil.processes.masking import Masked, mask_prob_at, mask_tokens
from crocodil.runtime.config import Length, Share, Weight, config
from crocodil.seeding import Streams
from crocodil.shapes import Positions, RegisterBank, TokenIds


@config
class PromptedObjective:
    """Options of stage prompted (App. H, decision D57)."""

    own_encoder: bool = False  # train h_kappa, which begins as h_phi; False: h_kappa is h_phi
    prompt_drop_rate: Share = 0.1  # how often the null prompt is used
    condition_drop_rate: Share = 0.5  # how often the null condition is used, as in a first draw
    prompt_length: Length = 128  # tokens of the canvas of a prompt
    answer_length: Length = 64  # tokens of the canvas of an answer, with BOS and EOS
    demasker_learns: bool = True  # train the demasker to read prompts too
    length_weight: Weight = 0.01  # of the loss of the length head


class PromptedBatch(NamedTuple):
    """Prompts and answers on their canvases (`text/prompts.py`)."""

    prompts: Masked
    answers: TokenIds
    texts: TokenIds
    is_answer: Positions  # on `texts`


def prompted_prior_loss(
    denoiser: RegisterDenoiser,
    encode: Encode,
    prompt: RegisterBank,
    answers: TokenIds,
    *,
    objective: PromptedObjective,
    prior_objective: PriorObjective,
    mask_id: int,
    streams: Streams,
) -> Loss:
    """App. H: return the loss of g_psi(z_t, t, h_phi(x_t), h_kappa(c)), where z_0 are the registers of an answer.

    `encode` is h_phi, kept fixed by the caller, and `prompt` is h_kappa(c). Condition and prompt are dropped
    independently.
    """
    registers = denoiser.standardise(encode(answers, None)[:, : denoiser.config.num_registers])
    noisy_registers, time = diffuse(registers, prior_objective, streams)
    condition = encode(*mask_condition(answers, prior_objective, mask_id, streams))
    keep = streams.at("keep condition").uniform() >= objective.condition_drop_rate
    keep_prompt = streams.at("keep prompt").uniform() >= objective.prompt_drop_rate
    predicted = denoise(denoiser, noisy_registers, time, prior_objective, condition, keep, prompt, keep_prompt)
    return F.mse_loss(predicted, registers)


def prompted_demasking_loss(
    encode: Encode,
    demasker: Demasker,
    batch: PromptedBatch,
    *,
    objective: DemaskerObjective,
    mask_id: int,
    streams: Streams,
) -> Loss:
    """Algorithm 1 with a prompt (App. H): only answer tokens are hidden, and the answer's registers guide.

    Registers and answers are corrupted as in Algorithm 1, prompts never (decision D74). `given_rate` is not used:
    the prompt is given. The loss is per token of an answer, then a mean over samples: it does not depend on how a
    batch is split.
    """
    mask_prob = mask_some_fully(
        mask_prob_at(streams.at("time").uniform()), objective.all_mask_rate, streams.at("all-mask")
    )
    masked = mask_tokens(
        batch.texts, mask_prob, mask_id=mask_id, streams=streams.at("mask"), given=~batch.is_answer
    )
    guide = sample_guide(encode, batch.answers, objective, streams)
    return guided_loss(
        demasker,
        guide,
        batch.texts,
        masked,
        mask_prob,
        objective=objective,
        mask_id=mask_id,
        streams=streams,
        is_answer=batch.is_answer,
    )
