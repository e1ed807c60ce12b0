"""Whether the parts of a model fit together: what cannot work is refused before anything is sampled."""

from crocodil.models.demasker import DemaskerConfig
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.tokenization import Tokenizer


def check_vocabulary(name: str, vocab_size: int, tokenizer: Tokenizer) -> None:
    if vocab_size < len(tokenizer):  # an embedding may have more rows than its tokenizer uses
        raise ValueError(
            f"a {name} of {vocab_size} tokens for a tokenizer of {len(tokenizer)}: "
            "they disagree about the vocabulary"
        )


def check_register_width(network: RegisterEncoder | RegisterDenoiser | None, demasker: DemaskerConfig) -> None:
    if network is not None and network.config.register_width != demasker.register_width:
        raise ValueError(
            f"registers {network.config.register_width} wide for a demasker of {demasker.register_width}"
        )
