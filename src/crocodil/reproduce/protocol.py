"""The protocols of the experiments: how many programs, samples and calls. `full` is the paper's."""

from collections.abc import Mapping
from dataclasses import asdict, field, fields, replace
from itertools import product
from typing import Any, TypeAlias

from crocodil.processes.plan import rule_name
from crocodil.reproduce.choice import Aims
from crocodil.runtime.config import Amount, Count, Length, Seed, Share, Weight, config, read_as
from crocodil.sampling.configs import Decoding, Drawing, with_knobs

Grid: TypeAlias = Mapping[str, tuple[Any, ...]]  # fields of sampling configs, and the values to try

MATCHING = (  # what `crocodil.metrics.speedup.matches` checks
    "MAUVE at least the base's minus its spread; Gen-PPL at most the base's or that of real text, whichever is "
    "higher, plus its spread; entropy no further from that of real text"
)
SWEPT_RULES = ("confidence", "noisy-confidence", "random", "remask", "remask-confidence")
NOT_SWEPT = ("calls", "block_size")  # set by the experiments


@config
class Protocol:
    """The defaults are the paper's values. A comment says where the paper states none."""

    name: str
    num_programs: Count = 1000  # for demasker curves and noise (Sec. 5), and for PSNR (not stated)
    num_copied: Count = 256  # programs for the autoencoder: not stated
    num_pairs: Count = 1000  # for the interpolation, App. D
    num_drawn: Count = 5000  # register banks for PRDC, App. E
    num_samples: Count = 1000  # per point of generation: not stated
    num_swept: Count = 256  # samples per candidate of the sweep: our choice; MAUVE of 128 is too noisy
    # Fields of `Decoding` and the values that every method is swept over, the base included.
    swept: Grid = field(default_factory=lambda: {"temperature": (0.0, 0.5, 0.75, 1.0), "rule": SWEPT_RULES})
    # Further grids for the base, and for guided methods, which may also sweep fields of `Drawing`. Each grid is
    # combined with `swept`, or replaces values of it. All methods must have equally many candidates.
    base_sweep: tuple[Grid, ...] = ()
    guided_sweep: tuple[Grid, ...] = ()
    # Grids of the models that are measured beside this one (`--compare`), by name. A model without grids is swept
    # like the guided methods. Its methods are measured at `compared_calls` only.
    compared: Mapping[str, tuple[Grid, ...]] = field(default_factory=dict)
    compared_calls: tuple[Length, ...] = (16,)
    min_calls: Length = 8  # of generation; multiplied by `call_factor` up to one call per token
    call_factor: Length = 2
    max_guided_calls: Length | None = 64  # for guided methods; None: up to one call per token, as for the base
    max_base_calls: Length | None = None  # for the base; None: up to one call per token
    with_oracle: bool = True  # also decode the registers of training programs
    swept_calls: tuple[Length, ...] = (16, 64)  # sweep at these; other numbers use the nearest (our choice)
    final_calls: Length = (
        128  # re-rank the top candidates at this many calls; used for larger budgets (our choice)
    )
    num_finalists: Count = 3
    aims: Aims | None = None  # choose by how many are reached; None: by MAUVE and Gen-PPL (D83)
    chosen_at: Length | None = None  # choose settings at this length, for all lengths; None: at each length (D64)
    ablation_calls: tuple[Length, ...] = (16, 64)  # App. G shows curves; the numbers of calls are not stated
    mask_probs: tuple[Share, ...] = tuple(tenth / 10 for tenth in range(1, 11))
    noise_stds: tuple[Weight, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    noise_mask_prob: Share = 0.9  # App. D
    diffusion_times: tuple[Share, ...] = tuple(twentieth / 20 for twentieth in range(1, 20))
    drawing: Mapping[str, Any] = field(default_factory=dict)  # changes to the `Drawing` of the model's settings
    mauve_seeds: tuple[Seed, ...] = (0, 1, 2, 3, 4)
    mauve_buckets: Count | None = None  # None: a tenth of the texts, as in the MAUVE paper
    nearest: Count = 5  # neighbours for PRDC
    num_bound: Count = 1024  # programs for the likelihood bound of the base: not in the paper
    num_maskings: Count = 32  # of each of them
    num_clocked: Count = 64  # programs per point when time is measured
    num_timed: Count = 3  # programs, one at a time, when a CPU is timed
    cpu_threads: Count = 2  # when a CPU is timed: a modest laptop
    table_rows: Amount | None = None  # of the autoencoder's table, besides the examples; None: all
    two_sentences_steps: tuple[Count, Count, Count] = (200, 300, 200)  # App. B: base, autoencoder, prior
    by_length: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # other values at some lengths

    def __post_init__(self) -> None:
        with_knobs(Decoding(), Drawing(), dict(self.drawing))
        of_base = _checked(self.candidates(guided=False), "the base")
        others = {"guided methods": self.candidates(guided=True)}
        others |= {name: self.candidates(guided=True, compared=name) for name in self.compared}
        for kind, candidates in others.items():
            if (count := _checked(candidates, kind)) != of_base:
                have = "has" if kind in self.compared else "have"
                raise ValueError(
                    f"the base has {of_base} candidates, {kind} {have} {count}: no method may be tuned more"
                )
        for length in self.by_length:
            if not length.isdecimal():
                raise ValueError(f"by_length has lengths as names, such as '512', not {length!r}")
            self.at(int(length))

    def at(self, length: int) -> "Protocol":
        """Return the protocol with the values of this length."""
        changes = dict(self.by_length.get(str(length), {}))
        if fixed := {"name", "by_length", "chosen_at"} & set(changes):
            raise ValueError(f"{min(fixed)} is the same at all lengths")
        return read_as(Protocol, {**asdict(self), "by_length": {}, **changes}, f"length {length}")

    def candidates(self, *, guided: bool, compared: str | None = None) -> list[dict[str, Any]]:
        """Return the candidates of the sweep for the base, each guided method, or those of a compared model."""
        grids = self.guided_sweep if guided else self.base_sweep
        if compared is not None:
            grids = self.compared.get(compared) or grids
        found = [candidate for grid in grids or ({},) for candidate in combinations({**self.swept, **grid})]
        return [{**one, "rule": rule_name(one["rule"])} if "rule" in one else one for one in found]

    @property
    def swept_names(self) -> set[str]:
        of_compared = [grid for grids in self.compared.values() for grid in grids]
        grids = (self.swept, *self.base_sweep, *self.guided_sweep, *of_compared)
        return {name for grid in grids for name in grid}

    def calls(self, length: int, *, guided: bool) -> list[int]:
        """Return the numbers of demasker calls to measure for a canvas, up to one call per token."""
        numbers, calls = [], self.min_calls
        while calls < length:
            numbers.append(calls)
            calls *= self.call_factor
        limit = (self.max_guided_calls if guided else self.max_base_calls) or length
        return [calls for calls in [*numbers, length] if calls <= limit]

    def with_paper_steps(self) -> "Protocol":
        """Return this protocol with 128 and 32 DDIM steps (Sec. 5) instead of the model's settings."""
        unguided = {"pag_scale": 0.0, "self_cond_scale": 1.0, "autoguidance": 1.0}
        return replace(self, drawing={"prior_steps": 128, "refresh_steps": 32, "eta": 0.0, **unguided})

    def swept_for(self, calls: int, length: int) -> int:
        """Return the swept number of calls to use for `calls`: the nearest by ratio, on a tie the smaller.

        If settings are chosen at another length, it is the nearest by tokens per call.
        """
        if self.is_chosen_elsewhere(length):
            assert self.chosen_at is not None
            calls, length = max(1, round(calls * self.chosen_at / length)), self.chosen_at
        possible = [swept for swept in (*self.swept_calls, self.final_calls) if swept <= length] or [calls]
        return min(possible, key=lambda swept: (max(swept / calls, calls / swept), swept))

    def is_chosen_elsewhere(self, length: int) -> bool:
        """Whether settings for this length are chosen at another one."""
        return self.chosen_at not in (None, length)

    def num_swept_at(self, calls: int, *, num_candidates: int) -> int:
        """Return how many candidates are measured at a swept number of calls."""
        return num_candidates if calls <= self.swept_calls[-1] else min(self.num_finalists, num_candidates)

    def ablation_calls_for(self, length: int) -> list[int]:
        """Return the ablation calls that do not exceed one call per token."""
        return [calls for calls in self.ablation_calls if calls <= length]


def combinations(grid: Grid) -> list[dict[str, Any]]:
    """Return all combinations of the values of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _checked(candidates: list[dict[str, Any]], kind: str) -> int:
    """Return the number of candidates. Each must be different, possible, and name the same fields."""
    is_base = kind == "the base"
    configs = (Decoding,) if is_base else (Decoding, Drawing)
    knobs = {entry.name for config in configs for entry in fields(config) if "help" in entry.metadata}
    known = knobs - {*NOT_SWEPT} - ({"guidance"} if is_base else set())  # guidance is by registers
    for candidate in candidates:
        if unknown := sorted(set(candidate) - known):
            raise ValueError(f"{unknown[0]} cannot be swept for {kind}: take one of {', '.join(sorted(known))}")
        if set(candidate) != set(candidates[0]):
            raise ValueError(f"the grids of {kind} have different fields: name all fields in each")
        with_knobs(Decoding(), Drawing(), candidate)
    if any(candidate in candidates[:index] for index, candidate in enumerate(candidates)):
        raise ValueError(f"two candidates of {kind} are the same")
    return len(candidates)


FULL = Protocol(name="full")
QUICK = Protocol(
    name="quick", num_programs=256, num_pairs=256, num_drawn=1024, num_samples=256, num_swept=128,
    swept={"temperature": (0.0, 0.5, 1.0), "rule": ("noisy-confidence", "remask-confidence")}, num_copied=128,
    mauve_seeds=(0, 1, 2), ablation_calls=(32,), swept_calls=(8, 64),
)  # fmt: skip
# Guided methods with the model's default settings. One candidate needs no sweep. The base is not measured: it may
# have one call at most, and the fewest that are measured are 16.
DEFAULTS = Protocol(name="defaults", swept={}, min_calls=16, max_guided_calls=32, max_base_calls=1, table_rows=0)
TINY = Protocol(
    name="tiny", num_programs=8, num_copied=8, num_pairs=6, num_drawn=8, num_samples=6, num_swept=4,
    swept={"rule": ("confidence",)}, base_sweep=({"temperature": (1.0,), "corrector": (0.0, 0.25)},),
    guided_sweep=({"temperature": (1.0,), "register_noise": (0.5, 1.0)},), min_calls=4, call_factor=16,
    compared_calls=(4,), max_guided_calls=4, swept_calls=(4, 32), final_calls=64, num_finalists=1,
    ablation_calls=(4,), mask_probs=(0.5, 1.0), noise_stds=(0.0, 1.0), diffusion_times=(0.2, 0.8),
    mauve_seeds=(0, 1), drawing={"prior_steps": 4, "refresh_steps": 2}, mauve_buckets=2, nearest=2,
    num_bound=4, num_maskings=2, num_clocked=2, num_timed=1, table_rows=1, two_sentences_steps=(20, 30, 20),
)  # fmt: skip
PROTOCOLS = {protocol.name: protocol for protocol in (FULL, QUICK, DEFAULTS, TINY)}


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
