"""Random numbers by a compiled kernel against plain ones: `python tests/compiled_draws.py [cuda]`.

It runs by itself, since the type checks of the tests cannot be compiled.
"""

import sys

import torch

from crocodil.seeding import Streams, compiled_draws, compiled_words, four_words_each


def main(device: str) -> None:
    for num_keys, num_counters in ((5, 1), (5, 6), (3, 700)):
        keys = Streams.of("compiled", samples=range(num_keys), device=device).keys
        assert torch.equal(compiled_words()(keys, num_counters), four_words_each(keys, num_counters))
    streams = Streams.of("compiled", samples=range(5), device=device)
    plain = streams.uniform(3, 7)
    with compiled_draws():
        assert torch.equal(streams.uniform(3, 7), plain)
    print("the same")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["cpu"])
