"""The decode loop as one would first write it: shapes as they come, every tensor looked at, nothing left out.

`crocodil.sampling.decode.decode` must equal it token for token and call for call.
"""

import torch

from crocodil.processes.categorical import propose_tokens
from crocodil.processes.reveal import RevealStep, before_given_text, fill_after_eos, hold_back_eos
from crocodil.sampling.cost import NO_COST, Cost
from crocodil.sampling.decode import reveal_rule
from crocodil.sampling.state import Samples


@torch.no_grad()
def clear_decode(
    demask,
    canvas,
    decoding,
    *,
    plan,
    registers=None,
    streams,
    refresh=None,
    refresh_at=(),
    spent=NO_COST,
):
    mask_id, eos_id, allowed, rule = canvas.mask_id, canvas.eos_id, canvas.allowed, reveal_rule(decoding)
    tokens, total, costs = canvas.tokens, spent, [spent] * len(canvas)
    given = tokens != mask_id
    if allowed is not None:
        given = given & (allowed.row == 0)
    first = tokens.shape[1] - plan.length

    def charge(cost, samples):
        nonlocal total
        total = total + cost
        for number in samples.nonzero().flatten().tolist():
            costs[number] = costs[number] + cost

    for call in plan.calls():
        call_streams = streams.at("call", call.index)
        masked = tokens == mask_id
        if refresh is not None and call.index in refresh_at and masked.any():
            registers, cost = refresh(tokens, registers, call_streams.at("refresh"))
            charge(cost, masked.any(dim=1))
        block = torch.zeros_like(masked)
        block[:, first + call.block_start : first + call.block_end] = True
        hidden = masked & block
        if not hidden.any():
            continue
        logits = every_logit(demask, tokens, registers, decoding.guidance)
        if allowed is not None:
            for number in range(1, len(allowed.tokens)):
                logits[(allowed.row == number)[..., None] & ~allowed.tokens[number]] = -torch.inf
        if eos_id is not None:
            text = given if allowed is None else given | (allowed.row > 0)
            logits[..., eos_id][before_given_text(tokens, given=text, eos_id=eos_id)] = -torch.inf
        sample, position = hidden.nonzero(as_tuple=True)
        proposal = propose_tokens(
            logits[hidden],
            mask_id=mask_id,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            streams=call_streams.at("token")[sample].at(position),
        )
        unfinished = hidden.any(dim=1)
        charge(Cost(demasker_calls=1 if decoding.guidance == 1 else 2), unfinished)
        proposed = tokens.masked_scatter(hidden, proposal.tokens)
        log_prob = torch.zeros(tokens.shape).masked_scatter(hidden, proposal.log_prob.float())
        if eos_id is not None and decoding.eos_last:
            log_prob = hold_back_eos(log_prob, is_eos=hidden & (proposed == eos_id), hidden=hidden)
        is_open = ~given & block & unfinished[:, None]
        step = RevealStep(log_prob, hidden, is_open, call.calls_left, plan.calls_per_block, call_streams)
        tokens = proposed.masked_fill(is_open & ~rule(step), mask_id)
        if eos_id is not None:
            tokens = fill_after_eos(tokens, may_end=~given, mask_id=mask_id, eos_id=eos_id)
    return Samples(tokens, total, costs, registers)


def every_logit(demask, tokens, registers, guidance):
    """At all positions, whatever is wanted."""
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    logits = demask(tokens, registers, places)
    if guidance != 1:
        without = demask(tokens, None, places)
        logits = without + guidance * (logits - without)
    return logits.unflatten(0, tokens.shape).clone()
