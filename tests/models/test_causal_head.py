import tiny
import torch

from crocodil.models.causal_head import CausalHead, CausalHeadConfig
from crocodil.seeding import generator_for


def test_a_new_head_changes_nothing():
    backbone = tiny.llada()
    head = CausalHead(CausalHeadConfig(backbone=tiny.BACKBONE)).init_weights(backbone, generator_for("head"))
    states = tiny.streams(2).normal(9, 32)
    assert torch.equal(head(states, tiny.programs(2, 9), backbone), states)


def test_a_head_sees_the_tokens_before_a_position_and_no_other():
    backbone = tiny.llada()
    head, states, tokens = tiny.causal_head(), tiny.streams(1).normal(9, 32), tiny.programs(1, 9)
    changed = tokens.clone()
    changed[0, 4] = (changed[0, 4] + 1) % tiny.EOS
    differs = (head(states, tokens, backbone) - head(states, changed, backbone)).abs().amax(dim=2)[0] > 1e-6
    assert differs.tolist() == [False] * 5 + [True] * 4


def test_drawing_equals_one_call_of_the_whole_head_for_each_token():
    backbone = tiny.llada()
    head, states, tokens = tiny.causal_head(), tiny.streams(3).normal(12, 32), tiny.programs(3, 12)
    chosen = [[0, 1, 2, 7], [3, 4, 11, 12], [5, 12, 12, 12]]  # 12 is padding
    for sample, places in enumerate(chosen):
        tokens[sample, [place for place in places if place < 12]] = tiny.MASK

    drawn = head.draw(states, tokens, torch.tensor(chosen), lambda logits, _: logits.argmax(dim=1), backbone)

    expected = tokens.clone()
    for sample, places in enumerate(chosen):
        for place in places:
            if place < 12:
                row = slice(sample, sample + 1)
                logits = backbone.logits(head(states[row], expected[row], backbone))
                expected[sample, place] = logits[0, place].argmax()
    assert torch.equal(drawn, expected)
