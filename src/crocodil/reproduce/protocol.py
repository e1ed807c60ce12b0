"""How much of everything an experiment does: the paper's own protocol, or less of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from crocodil.processes.plan import RULE_NAMES


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Counts that the paper states have its value as default; where it states none, the comment says so."""

    name: str
    num_programs: int = 1000  # of demasker curves, noise sweep (Sec. 5); of PSNR, not stated
    num_copied: int = 256  # programs through the autoencoder: not stated
    num_pairs: int = 1000  # App. D
    num_drawn: int = 5000  # registers for PRDC, App. E
    num_samples: int = 1000  # a point of generation: not stated
    num_swept: int = 256  # a candidate of the sweep: ours; of 128, MAUVE tells too few apart
    # Fields of `Decoding` and the values that every method is swept over, the base included.
    swept: Mapping[str, tuple[Any, ...]] = field(
        default_factory=lambda: {"temperature": (0.0, 0.5, 0.75, 1.0), "rule": RULE_NAMES}
    )
    fewest_calls: int = 8  # of generation; doubled up to one call a token
    call_factor: int = 2
    most_guided_calls: int | None = 64  # for guided methods; None: up to one a token, as for the base
    swept_calls: tuple[int, ...] = (16, 64)  # where all are swept: the nearest decides for other numbers, ours
    final_calls: int = 128  # where the best at the most of these meet again, for still more calls: ours
    num_finalists: int = 3
    ablation_calls: tuple[int, ...] = (16, 64)  # App. G shows curves; which calls, not stated
    mask_probs: tuple[float, ...] = tuple(tenth / 10 for tenth in range(1, 11))
    noise_stds: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    noise_mask_prob: float = 0.9  # App. D
    diffusion_times: tuple[float, ...] = tuple(twentieth / 20 for twentieth in range(1, 20))
    drawing: Mapping[str, Any] = field(default_factory=dict)  # fields of `Drawing` other than the model's own
    mauve_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    mauve_buckets: int | None = None  # None: a tenth of the texts, as MAUVE's authors do
    nearest: int = 5  # neighbours of PRDC
    num_clocked: int = 64  # programs of a point, when only seconds count
    num_timed: int = 3  # programs, one by one on a CPU
    cpu_threads: int = 2  # of that CPU: a modest laptop
    table_rows: int | None = None  # of the autoencoder's table, beside the examples; None: all
    two_sentences_steps: tuple[int, int, int] = (200, 300, 200)  # App. B: base, autoencoder, prior

    def candidates(self) -> list[dict[str, Any]]:
        """Return all combinations of the swept values."""
        return [dict(zip(self.swept, values, strict=True)) for values in product(*self.swept.values())]

    def calls(self, length: int, *, guided: bool) -> list[int]:
        """Numbers of demasker calls for one canvas, up to one a token."""
        found, calls = [], self.fewest_calls
        while calls < length:
            found.append(calls)
            calls *= self.call_factor
        most = self.most_guided_calls if guided and self.most_guided_calls is not None else length
        return [calls for calls in [*found, length] if calls <= most]

    def with_papers_steps(self) -> "Setting":
        """Sec. 5: 128 and 32 steps of DDIM, whatever the model's settings say."""
        return replace(self, drawing={"prior_steps": 128, "refresh_steps": 32, "eta": 0.0, "pag_scale": 0.0})

    def swept_for(self, calls: int, length: int) -> int:
        """At which number of calls is chosen for this one: the nearest by ratio, of two as near the smaller."""
        possible = [swept for swept in (*self.swept_calls, self.final_calls) if swept <= length] or [calls]
        return min(possible, key=lambda swept: (max(swept / calls, calls / swept), swept))

    def calls_of_ablations(self, length: int) -> list[int]:
        return [calls for calls in self.ablation_calls if calls <= length]


FULL = Setting(name="full")
QUICK = Setting(
    name="quick", num_programs=256, num_pairs=256, num_drawn=1024, num_samples=256, num_swept=128,
    swept={"temperature": (0.0, 0.5, 1.0), "rule": ("noisy-confidence", "remask-confidence")}, num_copied=128,
    mauve_seeds=(0, 1, 2), ablation_calls=(32,), swept_calls=(8, 64),
)  # fmt: skip
TINY = Setting(
    name="tiny", num_programs=8, num_copied=8, num_pairs=6, num_drawn=8, num_samples=6, num_swept=4,
    swept={"temperature": (0.5, 1.0), "rule": ("confidence",)}, fewest_calls=4, call_factor=16,
    most_guided_calls=4, swept_calls=(4, 32), final_calls=64, num_finalists=1, ablation_calls=(4,),
    mask_probs=(0.5, 1.0), noise_stds=(0.0, 1.0), diffusion_times=(0.2, 0.8), mauve_seeds=(0, 1),
    drawing={"prior_steps": 4, "refresh_steps": 2}, mauve_buckets=2, nearest=2, num_clocked=2, num_timed=1,
    table_rows=1, two_sentences_steps=(20, 30, 20),
)  # fmt: skip
SETTINGS = {setting.name: setting for setting in (FULL, QUICK, TINY)}


def setting(name: str) -> Setting:
    if name not in SETTINGS:
        raise ValueError(f"no setting {name!r}: take one of {', '.join(SETTINGS)}")
    return SETTINGS[name]


# ---------------------------------------------------------------- tables of the autoencoder

# Block sizes of Tables 1 and 2 with their numbers of calls; the paper's NFE is here the number of calls.
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


def blocks_and_calls(length: int, most_rows: int | None = None) -> list[tuple[int, int]]:
    """The paper's table of a length; for other lengths as many blocks and calls as Table 1, one a token at most.

    With the examples, in one block, always.
    """
    table = TABLES.get(length, {block * length // 256: calls for block, calls in TABLES[256].items()})
    examples = [(length, calls) for calls in EXAMPLE_CALLS]
    pairs = [(block, calls) for block, some in table.items() for calls in some if block and calls <= length]
    return sorted({*examples, *pairs[:most_rows]})
