"""Tiny real networks for tests: every class is the one that the paper's presets build, only smaller."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from crocodil.models.causal_head import CausalHead, CausalHeadConfig
from crocodil.models.demasker import Demasker, DemaskerConfig
from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.seeding import Streams, generator_for

VOCAB, MASK, EOS = 40, 39, 38
NUM_REGISTERS, REGISTER_WIDTH = 6, 16

BACKBONE = LLaDAConfig(
    vocab_size=VOCAB, width=32, num_layers=2, num_heads=4, num_kv_heads=2, mlp_width=48, rope_theta=10_000.0,
    mask_id=MASK, eos_id=EOS, pad_id=EOS,
)  # fmt: skip
DEMASKER = DemaskerConfig(
    backbone=BACKBONE, num_registers=NUM_REGISTERS, register_width=REGISTER_WIDTH, prefix_axis_share=0.5
)
ENCODER = RegisterEncoderConfig(
    vocab_size=VOCAB, width=REGISTER_WIDTH, num_layers=2, num_heads=2, num_kv_heads=1, head_width=8,
    mlp_width=32, end_id=EOS, num_registers=NUM_REGISTERS, register_width=REGISTER_WIDTH,
)  # fmt: skip
DENOISER = RegisterDenoiserConfig(
    num_registers=NUM_REGISTERS, register_width=REGISTER_WIDTH, width=32, num_layers=2, num_heads=2
)
CONDITIONAL = replace(DENOISER, condition_width=REGISTER_WIDTH, condition_length=NUM_REGISTERS)


def llada(config: LLaDAConfig = BACKBONE) -> LLaDA:
    return LLaDA(config).init_weights(generator_for("llada"))


def demasker(config: DemaskerConfig = DEMASKER) -> Demasker:
    return Demasker(config).init_weights(generator_for("demasker"))


def encoder(config: RegisterEncoderConfig = ENCODER) -> RegisterEncoder:
    return RegisterEncoder(config).init_weights(generator_for("encoder"))


def denoiser(config: RegisterDenoiserConfig = DENOISER) -> RegisterDenoiser:
    """With every weight stirred: fresh from `init_weights` it predicts zero whatever it sees."""
    model = RegisterDenoiser(config).init_weights(generator_for("denoiser"))
    generator = generator_for("stir")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def causal_head() -> CausalHead:
    """With weights that matter: fresh from `init_weights` it changes nothing."""
    head = CausalHead(CausalHeadConfig(backbone=BACKBONE)).init_weights(llada(), generator_for("head"))
    generator = generator_for("stir head")
    with torch.no_grad():
        head.proj_in.weight.normal_(std=0.2, generator=generator)
        head.proj_out.weight.normal_(std=0.5, generator=generator)
    return head


def programs(count: int, length: int) -> Tensor:
    """Random sequences without mask or end tokens."""
    return torch.randint(0, EOS, (count, length), generator=generator_for("programs"))


def bank(count: int, num_registers: int = NUM_REGISTERS) -> Tensor:
    return streams(count, "bank").normal(num_registers, REGISTER_WIDTH)


def streams(count: int, *name: str | int) -> Streams:
    return Streams.of("test", *name, samples=range(count))


def overfit(loss_of: Callable[[Streams], Tensor], *modules: nn.Module, steps: int, count: int) -> None:
    """Train these modules on the same `count` samples, with a learning rate that rises, then falls to 0."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimiser = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 1e-2 * min(1, (step + 1) / 20) * (1 - step / steps)
        loss = loss_of(streams(count, "step", step))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
