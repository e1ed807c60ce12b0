"""Algorithms 2, 3 and 6: get registers, then decode them.

- ConThenDisc (Algorithm 2) draws registers from a prior.
- ConWithinDisc (Algorithm 3) also draws them again between calls, given the tokens revealed so far.
- The autoencoder (Algorithm 6) encodes a text.

The base sampler has no registers: it is `decode` alone. For a prompt or for infilling, the canvas has given
tokens. Networks are passed as functions.
"""

from collections.abc import Callable, Collection

import torch

from crocodil.sampling.call import PLAIN, Engine
from crocodil.sampling.configs import Decoding
from crocodil.sampling.cost import NO_COST, Cost
from crocodil.sampling.decode import OnCall, decode
from crocodil.sampling.guidance import Demask
from crocodil.sampling.state import Canvas, Draw, Refresh, Samples
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds


def con_then_disc(
    draw: Callable[[Streams], Draw],
    demask: Demask,
    canvas: Canvas,
    decoding: Decoding,
    *,
    streams: Streams,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Algorithm 2: draw the registers (lines 2-3), then decode them (lines 4-11)."""
    registers, cost = draw(streams.at("prior"))
    return decode(
        demask, canvas, decoding, registers=registers, streams=streams, spent=cost, on_call=on_call, engine=engine
    )


def con_within_disc(
    draw: Callable[[Streams], Draw],
    redraw: Refresh,
    demask: Demask,
    canvas: Canvas,
    decoding: Decoding,
    *,
    streams: Streams,
    refresh_at: Collection[float] = (0.5,),
    spent: Cost = NO_COST,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Algorithm 3: as Algorithm 2, but draw the registers again, given the tokens decoded so far.

    `refresh_at` lists the fractions of the calls after which this happens; the paper uses one half (decision D9).
    A refresh at 0 replaces the first draw. `spent` is the cost before this function is called.
    """
    plan = decoding.plan(canvas.length)
    refresh_calls = calls_at(refresh_at, plan.num_calls)
    registers = None
    if 0 not in refresh_calls:
        registers, cost = draw(streams.at("prior"))
        spent = spent + cost
    return decode(
        demask,
        canvas,
        decoding,
        plan=plan,
        registers=registers,
        streams=streams,
        refresh=redraw,
        refresh_at=refresh_calls,
        spent=spent,
        on_call=on_call,
        engine=engine,
    )


def calls_at(shares: Collection[float], num_calls: int) -> set[int]:
    """Return the calls before which the registers are drawn again."""
    if not all(0 <= share < 1 for share in shares):
        raise ValueError(f"refresh_at holds shares of the calls, from 0 to below 1, not {list(shares)}")
    return {min(round(share * num_calls), num_calls - 1) for share in shares}


def autoencode(
    encode: Callable[[TokenIds], RegisterBank],
    demask: Demask,
    tokens: TokenIds,
    canvas: Canvas,
    decoding: Decoding,
    *,
    streams: Streams,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Algorithm 6: encode a sequence (line 2) and decode its registers on a new canvas (lines 3-9)."""
    with torch.no_grad():
        registers = encode(tokens)
    cost = Cost(encoder_calls=1)
    return decode(
        demask, canvas, decoding, registers=registers, streams=streams, spent=cost, on_call=on_call, engine=engine
    )
