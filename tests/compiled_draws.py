"""Random numbers by a compiled kernel against plain ones: `python tests/compiled_draws.py [cuda]`.

It runs by itself, since the type checks of the tests cannot be compiled.
"""

import sys
from dataclasses import replace

import tiny
import torch

from crocodil.pipeline.engine import engine_for
from crocodil.sampling.call import PLAIN
from crocodil.sampling.configs import Drawing
from crocodil.sampling.register_draw import Prior, draw_registers
from crocodil.seeding import Streams, compiled_draws, compiled_words, four_words_each


def main(device: str) -> None:
    for num_keys, num_counters in ((5, 1), (5, 6), (3, 700)):
        keys = Streams.of("compiled", samples=range(num_keys), device=device).keys
        assert torch.equal(compiled_words()(keys, num_counters), four_words_each(keys, num_counters))
    streams = Streams.of("compiled", samples=range(5), device=device)
    plain = streams.uniform(3, 7)
    with compiled_draws():
        assert torch.equal(streams.uniform(3, 7), plain)
    prior = replace(Prior.of(tiny.denoiser().to(device)), fresh_noise=True)
    drawing = Drawing(early_stop=True, register_noise=1.0)
    found = [
        draw_registers(prior, drawing, num_steps=2, streams=streams, engine=engine).registers
        for engine in (PLAIN, engine_for(torch.device(device), compiled=True))
    ]
    assert torch.allclose(*found, atol=1e-4), "registers differ"
    print("the same")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["cpu"])
