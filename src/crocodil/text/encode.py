"""Encode tokens to registers, for encoders with the demasker's vocabulary or another one (decision D7)."""

import torch

from crocodil.models.register_encoder import RegisterEncoder
from crocodil.runtime.devices import check_finite
from crocodil.shapes import Positions, RegisterBank, TokenIds
from crocodil.text.retokenizer import Retokenizer


def encode_tokens(
    encoder: RegisterEncoder,
    tokens: TokenIds,
    hidden: Positions | None = None,
    *,
    retokenizer: Retokenizer | None = None,
) -> RegisterBank:
    """Return z_0 = h_phi(x), computed from the visible tokens; `retokenizer` is for another vocabulary."""
    if retokenizer is None:
        return encoder(tokens, hidden=hidden)
    if hidden is None:
        hidden = torch.zeros_like(tokens, dtype=torch.bool)
    arrays = retokenizer(tokens.cpu().numpy(), hidden.cpu().numpy())
    encoder_tokens, valid, encoder_hidden = (torch.from_numpy(array).to(tokens.device) for array in arrays)
    return encoder(encoder_tokens, valid=valid, hidden=encoder_hidden)


def encode_checked(
    encoder: RegisterEncoder,
    tokens: TokenIds,
    hidden: Positions | None = None,
    *,
    retokenizer: Retokenizer | None = None,
) -> RegisterBank:
    """Like `encode_tokens`, but raise an error if registers are not finite. Training checks its loss instead."""
    registers = encode_tokens(encoder, tokens, hidden, retokenizer=retokenizer)
    check_finite(registers, "the encoder's registers")
    return registers
