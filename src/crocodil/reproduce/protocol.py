"""The protocols of the experiments: how many programs, samples and calls. `full` is the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from crocodil.processes.plan import RULE_NAMES


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The defaults are the paper's values. A comment says where the paper states none."""

    name: str
    num_programs: int = 1000  # for demasker curves and noise (Sec. 5), and for PSNR (not stated)
    num_copied: int = 256  # programs for the autoencoder: not stated
    num_pairs: int = 1000  # for the interpolation, App. D
    num_drawn: int = 5000  # register banks for PRDC, App. E
    num_samples: int = 1000  # per point of generation: not stated
    num_swept: int = 256  # samples per candidate of the sweep: our choice; MAUVE of 128 is too noisy
    # Fields of `Decoding` and the values that every method is swept over, the base included.
    swept: Mapping[str, tuple[Any, ...]] = field(
        default_factory=lambda: {"temperature": (0.0, 0.5, 0.75, 1.0), "rule": RULE_NAMES}
    )
    min_calls: int = 8  # of generation; multiplied by `call_factor` up to one call per token
    call_factor: int = 2
    max_guided_calls: int | None = 64  # for guided methods; None: up to one call per token, as for the base
    swept_calls: tuple[int, ...] = (16, 64)  # sweep at these; other numbers use the nearest (our choice)
    final_calls: int = 128  # re-rank the top candidates at this many calls; used for larger budgets (our choice)
    num_finalists: int = 3
    ablation_calls: tuple[int, ...] = (16, 64)  # App. G shows curves; the numbers of calls are not stated
    mask_probs: tuple[float, ...] = tuple(tenth / 10 for tenth in range(1, 11))
    noise_stds: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    noise_mask_prob: float = 0.9  # App. D
    diffusion_times: tuple[float, ...] = tuple(twentieth / 20 for twentieth in range(1, 20))
    drawing: Mapping[str, Any] = field(default_factory=dict)  # changes to the `Drawing` of the model's settings
    mauve_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    mauve_buckets: int | None = None  # None: a tenth of the texts, as in the MAUVE paper
    nearest: int = 5  # neighbours for PRDC
    num_clocked: int = 64  # programs per point when time is measured
    num_timed: int = 3  # programs, one at a time, when a CPU is timed
    cpu_threads: int = 2  # when a CPU is timed: a modest laptop
    table_rows: int | None = None  # of the autoencoder's table, besides the examples; None: all
    two_sentences_steps: tuple[int, int, int] = (200, 300, 200)  # App. B: base, autoencoder, prior

    def candidates(self) -> list[dict[str, Any]]:
        """Return all combinations of the swept values."""
        return [dict(zip(self.swept, values, strict=True)) for values in product(*self.swept.values())]

    def calls(self, length: int, *, guided: bool) -> list[int]:
        """Return the numbers of demasker calls to measure for a canvas, up to one call per token."""
        numbers, calls = [], self.min_calls
        while calls < length:
            numbers.append(calls)
            calls *= self.call_factor
        limit = self.max_guided_calls if guided and self.max_guided_calls is not None else length
        return [calls for calls in [*numbers, length] if calls <= limit]

    def with_paper_steps(self) -> "Protocol":
        """Return this protocol with 128 and 32 DDIM steps (Sec. 5) instead of the model's settings."""
        unguided = {"pag_scale": 0.0, "self_cond_scale": 1.0, "autoguidance": 1.0}
        return replace(self, drawing={"prior_steps": 128, "refresh_steps": 32, "eta": 0.0, **unguided})

    def swept_for(self, calls: int, length: int) -> int:
        """Return the swept number of calls to use for `calls`: the nearest by ratio, on a tie the smaller."""
        possible = [swept for swept in (*self.swept_calls, self.final_calls) if swept <= length] or [calls]
        return min(possible, key=lambda swept: (max(swept / calls, calls / swept), swept))

    def ablation_calls_for(self, length: int) -> list[int]:
        """Return the ablation calls that do not exceed one call per token."""
        return [calls for calls in self.ablation_calls if calls <= length]


FULL = Protocol(name="full")
QUICK = Protocol(
    name="quick", num_programs=256, num_pairs=256, num_drawn=1024, num_samples=256, num_swept=128,
    swept={"temperature": (0.0, 0.5, 1.0), "rule": ("noisy-confidence", "remask-confidence")}, num_copied=128,
    mauve_seeds=(0, 1, 2), ablation_calls=(32,), swept_calls=(8, 64),
)  # fmt: skip
TINY = Protocol(
    name="tiny", num_programs=8, num_copied=8, num_pairs=6, num_drawn=8, num_samples=6, num_swept=4,
    swept={"temperature": (0.5, 1.0), "rule": ("confidence",)}, min_calls=4, call_factor=16,
    max_guided_calls=4, swept_calls=(4, 32), final_calls=64, num_finalists=1, ablation_calls=(4,),
    mask_probs=(0.5, 1.0), noise_stds=(0.0, 1.0), diffusion_times=(0.2, 0.8), mauve_seeds=(0, 1),
    drawing={"prior_steps": 4, "refresh_steps": 2}, mauve_buckets=2, nearest=2, num_clocked=2, num_timed=1,
    table_rows=1, two_sentences_steps=(20, 30, 20),
)  # fmt: skip
PROTOCOLS = {protocol.name: protocol for protocol in (FULL, QUICK, TINY)}


def protocol_named(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise ValueError(f"no protocol {name!r}: choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


# ---------------------------------------------------------------- tables of the autoencoder

# Tables 1 and 2: length -> block size -> numbers of demasker calls, which the paper calls NFE.
TABLES: dict[int, dict[int, tuple[int, ...]]] = {
    256: {
        32: (8, 16, 32, 64, 128, 256),
        64: (8, 16, 32, 64),
        128: (8, 16, 32, 64),
        256: (4, 8, 16, 32, 64),
    },
    512: {
        32: (16, 32, 64, 128, 256),
        64: (8, 16, 32, 64, 128, 256),
        128: (8, 16, 32, 64),
        256: (8, 16, 32, 64, 128),
        512: (8, 16, 32, 64, 128),
    },
}
EXAMPLE_CALLS = (4, 16)  # Fig. 5, one block


def blocks_and_calls(length: int, max_rows: int | None = None) -> list[tuple[int, int]]:
    """Return the (block size, calls) pairs of the paper's table for this length, and those of the examples.

    Other lengths scale the block sizes of Table 1, with at most one call per token. Examples decode in one block.
    """
    table = TABLES.get(length, {block * length // 256: calls for block, calls in TABLES[256].items()})
    examples = [(length, calls) for calls in EXAMPLE_CALLS]
    pairs = [(block, calls) for block, numbers in table.items() for calls in numbers if block and calls <= length]
    return sorted({*examples, *pairs[:max_rows]})
