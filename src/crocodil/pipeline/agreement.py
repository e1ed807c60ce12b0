"""Whether the parts of a model fit together: what cannot work is refused before anything is sampled."""

from crocodil.models.demasker import Demasker
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.tokenization import Tokenizer


def check_vocabulary(name: str, vocab_size: int, tokenizer: Tokenizer) -> None:
    if vocab_size < len(tokenizer):  # an embedding may have more rows than its tokenizer uses
        raise ValueError(
            f"a {name} of {vocab_size} tokens for a tokenizer of {len(tokenizer)}: "
            "they disagree about the vocabulary"
        )


def check_networks(
    demasker: Demasker,
    encoder: RegisterEncoder,
    prior: RegisterDenoiser | None,
    conditional: RegisterDenoiser | None,
    condition_encoder: RegisterEncoder | None,
) -> None:
    """Registers have one width, are no more than the demasker reads, and a condition is what an encoder gives."""
    width, count = demasker.config.register_width, demasker.config.num_registers
    for network in (encoder, prior, conditional):
        if network is not None and network.config.register_width != width:
            raise ValueError(f"registers {network.config.register_width} wide for a demasker of {width}")
    if encoder.config.num_registers > count:
        raise ValueError(f"an encoder of {encoder.config.num_registers} registers for a demasker of {count}")
    for denoiser in (prior, conditional):
        if denoiser is not None and denoiser.config.num_registers > count:
            raise ValueError(f"a prior of {denoiser.config.num_registers} registers for a demasker of {count}")
    if prior is not None and prior.config.condition_width is not None:
        raise ValueError("the prior has cross-attention: it is a conditional one, are the two swapped?")
    if conditional is not None:
        _check_condition(conditional, condition_encoder or encoder)


def _check_condition(conditional: RegisterDenoiser, encoder: RegisterEncoder) -> None:
    wanted = (conditional.config.condition_length, conditional.config.condition_width)
    given = (encoder.config.num_registers, encoder.config.register_width)
    if wanted[1] is None:
        raise ValueError("the conditional prior has no cross-attention: it is a plain one, are the two swapped?")
    if wanted != given:
        raise ValueError(f"the conditional prior reads {wanted} registers and width, its encoder gives {given}")
