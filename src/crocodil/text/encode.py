"""Tokens -> registers, whether or not the encoder reads the demasker's vocabulary (decision D7)."""

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
    """z_0 = h_phi(x), of the visible tokens alone. An encoder of the same vocabulary reads the whole canvas."""
    if retokenizer is None:
        return encoder(tokens, hidden=hidden)
    if hidden is None:
        hidden = torch.zeros_like(tokens, dtype=torch.bool)
    read = retokenizer(tokens.cpu().numpy(), hidden.cpu().numpy())
    ids, valid, unseen = (torch.from_numpy(array).to(tokens.device) for array in read)
    return encoder(ids, valid=valid, hidden=unseen)


def encode_checked(
    encoder: RegisterEncoder,
    tokens: TokenIds,
    hidden: Positions | None = None,
    *,
    retokenizer: Retokenizer | None = None,
) -> RegisterBank:
    """The same for sampling: registers that are not finite are refused. Training looks at its loss instead."""
    registers = encode_tokens(encoder, tokens, hidden, retokenizer=retokenizer)
    check_finite(registers, "the encoder's registers")
    return registers
