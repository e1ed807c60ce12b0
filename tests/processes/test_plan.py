import pytest

from crocodil.processes.plan import DecodePlan


def test_a_plan_opens_blocks_left_to_right_and_spends_all_its_calls():
    plan = DecodePlan(length=256, block_size=32, num_calls=32)  # the paper's example: 8 tokens a call
    calls = list(plan.calls())
    assert [call.index for call in calls] == list(range(32))
    assert [call.calls_left for call in calls[:5]] == [4, 3, 2, 1, 4]
    assert [(call.block_start, call.block_end) for call in calls[::4]] == [(i, i + 32) for i in range(0, 256, 32)]


@pytest.mark.parametrize(
    ("length", "block_size", "num_calls", "message"),
    [
        (256, 48, 16, "block_size 48 does not divide length 256"),
        (256, 32, 12, "12 calls do not split over 8 blocks: use a multiple of 8"),
        (256, 32, 512, "512 calls exceed the 256 tokens of the canvas: use 256 or fewer"),
        (256, 256, 0, "num_calls should be greater than or equal to 1, not 0"),
        (0, 32, 8, "length should be greater than or equal to 1, not 0"),
    ],
)
def test_an_impossible_plan_cannot_be_built(length, block_size, num_calls, message):
    with pytest.raises(ValueError, match=message):
        DecodePlan(length=length, block_size=block_size, num_calls=num_calls)
