"""The decode loop as one would first write it: shapes as they come, every tensor looked at, nothing left out.

`crocodil.sampling.decode.decode` must equal it token for token and call for call.
"""

import torch

from crocodil.processes.categorical import Proposal, propose_tokens
from crocodil.processes.reveal import (
    RevealStep,
    before_given_text,
    fill_after_eos,
    hold_back_eos,
    neighbours_last,
    revises,
)
from crocodil.sampling.call import reveal_rule
from crocodil.sampling.cost import NO_COST, Cost
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
    left_out = [0] * len(canvas)
    crops = eos_id is not None and decoding.crop is not None
    read_length = torch.full((len(canvas),), tokens.shape[1]) if crops else None
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
        logits = every_logit(demask, tokens, registers, decoding.guidance, read_length)
        if allowed is not None:
            for number in range(1, len(allowed.tokens)):
                logits[(allowed.row == number)[..., None] & ~allowed.tokens[number]] = -torch.inf
        if eos_id is not None:
            text = given if allowed is None else given | (allowed.row > 0)
            logits[..., eos_id][before_given_text(tokens, given=text, eos_id=eos_id)] = -torch.inf
        unfinished = hidden.any(dim=1)
        is_open = ~given & block & unfinished[:, None]
        asked = is_open if revises(rule) else hidden
        if crops:
            is_read = torch.arange(tokens.shape[1]) < read_length[:, None]
            asked = asked & is_read
        sample, position = asked.nonzero(as_tuple=True)
        proposal = propose_tokens(
            logits[asked],
            mask_id=mask_id,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            streams=call_streams.at("token")[sample].at(position),
        )
        if revises(rule):
            of_old = logits.index_fill(2, torch.tensor(mask_id), -torch.inf).log_softmax(dim=2)[asked]
            of_old = of_old.gather(1, tokens[asked][:, None])[:, 0]
            better = proposal.log_prob > of_old
            proposal = Proposal(
                proposal.tokens.where(better, tokens[asked]), proposal.log_prob.where(better, of_old)
            )
        num_forward = 1 if decoding.guidance == 1 else 2
        charge(Cost(demasker_calls=num_forward, head_calls=int(decoding.in_turn != "no")), unfinished)
        proposed = tokens.masked_scatter(asked, proposal.tokens)
        was_read = read_length
        if crops:
            read_length = read_length.clone()
            proposed[hidden & ~is_read] = eos_id
            for number in unfinished.nonzero().flatten().tolist():
                left_out[number] += num_forward * int((~is_read[number]).sum())
            for number, row in enumerate(proposed.tolist()):
                end = max((place + 1 for place, token in enumerate(row) if token != eos_id), default=0)
                read_length[number] = max(1, min(end + decoding.crop, len(row)))
        of_proposals = log_prob = torch.zeros(tokens.shape).masked_scatter(asked, proposal.log_prob.float())
        if eos_id is not None and decoding.eos_last:
            log_prob = hold_back_eos(log_prob, is_eos=hidden & (proposed == eos_id), hidden=hidden)
        correctors = decoding.corrector_calls(plan.calls_per_block)
        left, calls = max(call.calls_left - correctors, 1), plan.calls_per_block - correctors
        after_end = None
        if eos_id is not None and decoding.pace == "text":
            after_end = torch.zeros_like(hidden)
            for number, row in enumerate(proposed.tolist()):
                length = max((place + 1 for place, token in enumerate(row) if token != eos_id), default=0)
                after_end[number, length:] = hidden[number, length:]
        step = RevealStep(log_prob, hidden, is_open, left, calls, call_streams, after_end, decoding.curve)
        kept = is_open & rule(step)
        if decoding.pace == "text" and eos_id is not None and not revises(rule):
            for number in range(len(tokens)):  # all that is hidden is behind the text: it is complete
                if after_end is not None and left > 1 and not (hidden & ~after_end)[number].any():
                    kept[number] = is_open[number]
        if decoding.in_turn != "no":
            state = (registers, tokens, proposed, kept, is_open, given, canvas, was_read)
            proposed = drawn_in_turn(demask, decoding, rule, plan, call_streams, *state)
        tokens = proposed.masked_fill(is_open & ~kept, mask_id)
        if eos_id is not None:
            tokens = fill_after_eos(tokens, may_end=~given, mask_id=mask_id, eos_id=eos_id)
        for number in range(len(tokens)) if correctors and call.calls_left > 1 else ():
            row, is_open_row = tokens[number], is_open[number]
            text = is_open_row.nonzero().flatten().tolist()
            if (row[block[number]] == mask_id).any():
                continue  # not complete
            if eos_id in row[text].tolist():
                text = text[: row[text].tolist().index(eos_id) + 1]
            order = call_streams.at("corrector").uniform(tokens.shape[1])
            if revises(rule):
                order = neighbours_last(-of_proposals, among=is_open)
            chosen = sorted(text, key=lambda place: -order[number, place].item())[: -(-len(text) // 10)]
            tokens = tokens.index_put(
                (torch.tensor(number), torch.tensor(chosen, dtype=torch.long)), torch.tensor(mask_id)
            )
    costs = [cost + Cost(left_out=more) for cost, more in zip(costs, left_out, strict=True)]
    total = total + Cost(left_out=round(torch.tensor(left_out).float().mean().item()))
    return Samples(tokens, total, costs, registers)


def drawn_in_turn(
    demask, decoding, rule, plan, streams, registers, tokens, proposed, kept, is_open, given, canvas, read_length
):
    """One token after the other, each with the whole head."""
    proposed, backbone, length = proposed.clone(), demask.demasker.backbone, tokens.shape[1]
    calls = plan.calls_per_block - decoding.corrector_calls(plan.calls_per_block)
    size = plan.block_size
    most = size if decoding.in_turn == "all" else min(size, 4 * -(-size // calls))
    for number in range(len(tokens)):
        row = slice(number, number + 1)
        end = length if read_length is None else int(read_length[number])
        some = None if read_length is None else read_length[row]
        states = demask.states(tokens[row], None if registers is None else registers[row], some)
        is_new = kept[number].clone()
        if decoding.in_turn == "new":
            is_new &= (tokens[number] == canvas.mask_id) | (proposed[number] != tokens[number])
        if canvas.eos_id is not None:
            is_new &= proposed[number] != canvas.eos_id
        places = is_new.nonzero().flatten().tolist()  # all of them are read
        seen = proposed[row].clone()
        seen[0, places] = canvas.mask_id
        seen[is_open[row] & ~kept[row]] = canvas.mask_id
        for place in places[:most]:
            logits = backbone.logits(demask.head(states[:, :end], seen[:, :end], backbone))[0, place].clone()
            if canvas.eos_id is not None:
                logits[canvas.eos_id] = -torch.inf  # the demasker decides where a text ends
            if canvas.allowed is not None and canvas.allowed.row[number, place]:
                logits[~canvas.allowed.tokens[canvas.allowed.row[number, place]]] = -torch.inf
            proposal = propose_tokens(
                logits[None],
                mask_id=canvas.mask_id,
                current=tokens[row, place] if revises(rule) else None,
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                streams=streams.at("in turn").at("token")[torch.tensor([number])].at(torch.tensor([place])),
            )
            seen[0, place] = proposed[number, place] = proposal.tokens[0]
    return proposed


def every_logit(demask, tokens, registers, guidance, read_length=None):
    """At all positions, whatever is wanted."""
    if read_length is not None:  # each sample alone, so that none is padded
        banks = [None] * len(tokens) if registers is None else registers.split(1)
        return torch.cat(
            [
                every_logit(lambda *given, n=length: demask(*given, n), row, bank, guidance)
                for row, bank, length in zip(tokens.split(1), banks, read_length.split(1), strict=True)
            ]
        )
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    logits = demask(tokens, registers, places)
    if guidance != 1:
        without = demask(tokens, None, places)
        logits = without + guidance * (logits - without)
    return logits.unflatten(0, tokens.shape).clone()
