"""How a model is used: the settings beside its weights. Loads no torch, so that a wrong option is told at once."""

import os
from enum import StrEnum
from pathlib import Path

from crocodil.processes.plan import RuleName
from crocodil.runtime.config import (
    Coherence,
    Guidance,
    Length,
    Positive,
    Share,
    Steps,
    Temperature,
    TopP,
    Width,
    config,
    config_from_json,
    read_json,
)

FORMAT, FORMAT_VERSION = "crocodil model", 1
SETTINGS_FILE = "crocodil.json"
BUILTIN = "builtin"  # the model that ships with the package


class Method(StrEnum):
    """Where the registers come from that guide a generation."""

    BASE = "base"  # none: plain masked diffusion
    CON_THEN_DISC = "conthendisc"  # Algorithm 2: the prior
    CON_WITHIN_DISC = "conwithindisc"  # Algorithm 3: the prior, and again the conditional prior on the way

    @classmethod
    def _missing_(cls, value: object) -> "Method":
        raise ValueError(f"no method {value!r}: take one of {', '.join(cls)}")


# Settings that are younger than some folders, with what was so without them.
YOUNGER = {"coherence": 0.0, "rule": "most confident", "time_shift": 1.0}


@config
class Settings:
    """How a model is used: written beside its weights."""

    length: Length  # of a canvas in tokens, unless another is asked for
    lengths: tuple[Length, ...] = ()  # of all canvases it was trained on; none: of that length alone
    largest_offset: Share = 0.1  # of the priors' block offsets, as in training (decision D4)
    time_shift: Positive = 1.0  # of the priors' diffusion times, as in training
    prior_steps: Steps = 128  # Sec. 5
    refresh_steps: Steps = 32  # Sec. 5
    eta: Share = 0.0  # of both draws: 0 is DDIM (App. E), 1 draws fresh noise at every step
    coherence: Coherence = 0.0  # of both draws: away from registers that do not see each other (decision D33)
    num_registers: Width | None = None  # the first of those drawn, which guide a generation; None: all
    rule: RuleName = "most confident"  # which tokens a guided call keeps
    temperature: Temperature = 1.0  # of generated tokens
    top_p: TopP = 1.0
    guidance: Guidance = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(sorted({*self.lengths, self.length})))

    def canvas(self, length: int | None) -> int:
        """The length of a canvas: the one asked for, if the model can fill it, or its own."""
        length = self.length if length is None else length
        if not 2 <= length <= self.lengths[-1]:
            raise ValueError(f"this model fills canvases of 2 to {self.lengths[-1]} tokens, not {length}")
        return length


def model_folder(path_or_name: str | os.PathLike[str]) -> Path:
    folder = Path(__file__).parent.parent / BUILTIN if path_or_name == BUILTIN else Path(path_or_name)
    if not (folder / SETTINGS_FILE).is_file():
        raise ValueError(
            f"no model {str(path_or_name)!r}: a model is {BUILTIN!r}, or a folder with {SETTINGS_FILE}"
        )
    return folder


def read_settings(file: Path) -> Settings:
    about = read_json(file)
    found = (about.pop("format", None), about.pop("format_version", None))
    if found != (FORMAT, FORMAT_VERSION):
        raise ValueError(f"{file} is not version {FORMAT_VERSION} of this project's model format")
    return config_from_json(Settings, YOUNGER | about, file)
