import pytest
import tiny
import torch
from beartype.roar import BeartypeCallHintParamViolation
from tiny import MASK

from crocodil.processes.masking import mask_tokens
from crocodil.processes.registers import interpolate


def test_a_wrong_shape_is_refused_while_tests_run():
    tokens, streams = tiny.programs(3, 8), tiny.streams(3)
    with pytest.raises(BeartypeCallHintParamViolation, match="mask_prob"):
        mask_tokens(tokens, torch.full((3, 1), 0.5), mask_id=MASK, streams=streams)
    with pytest.raises(BeartypeCallHintParamViolation, match="tokens"):
        mask_tokens(tokens.float(), torch.full((3,), 0.5), mask_id=MASK, streams=streams)
    with pytest.raises(BeartypeCallHintParamViolation, match="second"):
        interpolate(tiny.bank(3), tiny.bank(2), mix_weight=0.5)


def test_an_int_may_stand_for_a_float():
    assert interpolate(tiny.bank(3), tiny.bank(3), mix_weight=1).shape == (3, 6, 16)
