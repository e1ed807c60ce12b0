"""Compiled priors have the loss and the gradients of plain ones: run as a script, like `compiled_reveal.py`.

python tests/compiled_priors.py [cuda]
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import tiny
import torch
from torch import Tensor

from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.objectives import PriorObjective, conditional_prior_loss, prior_loss
from crocodil.seeding import Streams

Loss = Callable[[RegisterDenoiser], Tensor]


def gradients(denoiser: RegisterDenoiser, loss: Loss) -> list[Tensor]:
    denoiser.zero_grad()
    value = loss(denoiser)
    value.backward()
    return [value.detach(), *(p.grad for p in denoiser.parameters() if p.grad is not None)]


def main(device: str) -> None:
    streams, tokens = Streams.of("prior", samples=range(8), device=device), tiny.programs(8, 16).to(device)
    registers, encoder = tiny.bank(8).to(device), tiny.encoder().to(device)
    compiled_loss = torch.compile(prior_loss, dynamic=False)

    def plain(denoiser: RegisterDenoiser) -> Tensor:
        return prior_loss(denoiser, registers, objective=PriorObjective(), streams=streams)

    def compiled(denoiser: RegisterDenoiser) -> Tensor:
        return compiled_loss(denoiser, registers, objective=PriorObjective(), streams=streams)

    def conditional(denoiser: RegisterDenoiser) -> Tensor:
        return conditional_prior_loss(
            denoiser, lambda given, hidden: encoder(given, hidden=hidden), tokens, registers,
            objective=PriorObjective(), mask_id=tiny.MASK, streams=streams,
        )  # fmt: skip

    prior = tiny.denoiser(replace(tiny.DENOISER, self_conditioned=True)).to(device)
    both = [gradients(prior, loss) for loss in (plain, compiled)]
    given = tiny.denoiser(replace(tiny.CONDITIONAL, self_conditioned=True)).to(device)
    expected = gradients(given, conditional)
    given.compile(dynamic=False)
    for one, other in (both, (expected, gradients(given, conditional))):
        assert len(one) == len(other)
        assert all(torch.allclose(a, b, atol=1e-4, rtol=1e-3) for a, b in zip(one, other, strict=True))
    print("the same")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
