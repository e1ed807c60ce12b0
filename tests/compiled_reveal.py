"""A compiled `reveal` reveals what the plain one does: run as a script, since checked annotations do not compile.

python tests/compiled_reveal.py [cuda]
"""

import sys
from dataclasses import replace

import tiny
import torch

from crocodil.pipeline.engine import engine_for
from crocodil.processes.categorical import Allowed
from crocodil.processes.reveal import AtRandom, MostConfident
from crocodil.runtime.graphs import eager
from crocodil.sampling.call import PLAIN, Engine, reveal
from crocodil.sampling.configs import Decoding
from crocodil.sampling.decode import decode
from crocodil.sampling.guidance import Guided
from crocodil.sampling.state import Canvas
from crocodil.seeding import Streams


def main(device: str) -> None:
    demasker = tiny.demasker().to(device)
    compiled = Engine(eager, torch.compile(reveal, dynamic=True))
    engine = engine_for(torch.device(device), compiled=True) if device == "cuda" else compiled
    tokens = torch.ones(2, tiny.VOCAB, dtype=torch.bool, device=device)
    tokens[1] = torch.arange(tiny.VOCAB, device=device) % 13 == 1
    row = (torch.arange(16, device=device) % 5 == 3).long().expand(32, -1)
    for rule, allowed in ((MostConfident(), None), (AtRandom(), Allowed(row, tokens))):
        empty = Canvas.empty(32, 16, mask_id=tiny.MASK, eos_id=5, device=device)
        found = [
            decode(
                Guided(demasker),
                replace(empty, allowed=allowed),
                Decoding(calls=4, rule=rule, temperature=1.0),
                registers=tiny.bank(32).to(device),
                streams=Streams.of("compiled", samples=range(32), device=device),
                engine=one,
            ).tokens
            for one in (PLAIN, engine)
        ]
        share = (found[0] == found[1]).float().mean().item()
        assert share > 0.99, f"{rule}: only {share:.1%} of the tokens agree"
        assert allowed is None or tokens[row].gather(2, found[1][..., None]).all(), "a token that is not allowed"
    print("the same")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
