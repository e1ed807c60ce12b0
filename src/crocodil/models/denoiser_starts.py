"""Denoisers that start from the weights of another network: a demasker, a conditional prior or a teacher."""

from dataclasses import replace

import torch
from torch import nn

from crocodil.models.demasker import Demasker
from crocodil.models.denoiser_blocks import time_features
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig


def begun_as_demasker(
    config: RegisterDenoiserConfig, demasker: Demasker, generator: torch.Generator
) -> RegisterDenoiser:
    """Return a denoiser with the blocks of a trained demasker; it reads a condition like masked text at first."""
    denoiser = RegisterDenoiser(config).init_weights(generator)
    assert denoiser.body is not None
    denoiser.body.copy_weights(demasker)
    with torch.no_grad():
        denoiser.proj_in.weight.copy_(demasker.register_map.weight)
        nn.init.zeros_(denoiser.pos_embed)
        for embedding in (denoiser.condition_embed, denoiser.prompt_embed):
            if embedding is not None:
                embedding.pos_embed.copy_(demasker.backbone.embed.weight[demasker.config.backbone.mask_id])
                last = embedding.proj_in[-1]
                assert isinstance(last, nn.Linear)
                nn.init.zeros_(last.weight)
    return denoiser


def prompted_from(
    conditional: RegisterDenoiser, prompt_length: int, prompt_width: int, generator: torch.Generator
) -> RegisterDenoiser:
    """Return a denoiser that reads a prompt; all other weights are copied from a conditional prior."""
    config = replace(conditional.config, prompt_width=prompt_width, prompt_length=prompt_length)
    prompted = RegisterDenoiser(config).init_weights(generator)
    prompted.load_state_dict(prompted.state_dict() | conditional.state_dict())
    return prompted


def flow_map_of(teacher: RegisterDenoiser, generator: torch.Generator) -> RegisterDenoiser:
    """Return a flow map with the weights of the teacher: at first it predicts the same for every end time."""
    return _student(replace(teacher.config, self_conditioned=False, flow_map=True), teacher, generator)


def fresh_noise_copy_of(teacher: RegisterDenoiser, generator: torch.Generator) -> RegisterDenoiser:
    """Return a denoiser with the weights of the teacher whose steps add fresh noise."""
    return _student(replace(teacher.config, self_conditioned=False, fresh_noise=True), teacher, generator)


def plain_copy_of(denoiser: RegisterDenoiser) -> RegisterDenoiser:
    """Return a distilled prior as an ordinary one, which can be trained by likelihood again.

    It predicts the same; of a flow map, the same as for a step of length 0. Any other prior is returned as it is.
    """
    if not denoiser.config.is_distilled:
        return denoiser
    plain = RegisterDenoiser(replace(denoiser.config, fresh_noise=False, flow_map=False))
    weights = {name: value for name, value in denoiser.state_dict().items() if not name.startswith("span.")}
    plain.load_state_dict(weights)
    if denoiser.span is not None:  # for a step of length 0 it adds a constant
        last = plain.time[-1]
        assert isinstance(last, nn.Linear)
        no_span = time_features(torch.zeros(1, 1, device=last.bias.device)).to(last.bias.dtype)
        with torch.no_grad():
            last.bias.add_(denoiser.span(no_span)[0, 0])
    return plain


def _student(
    config: RegisterDenoiserConfig, teacher: RegisterDenoiser, generator: torch.Generator
) -> RegisterDenoiser:
    """A self-conditioned teacher is copied without the input for its previous prediction."""
    student = RegisterDenoiser(config).init_weights(generator)
    weights = {name: value for name, value in teacher.state_dict().items() if not name.startswith("proj_guess")}
    student.load_state_dict(student.state_dict() | weights)
    return student
