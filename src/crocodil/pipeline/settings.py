"""The settings in crocodil.json: canvas lengths and sampling defaults. Does not import torch, so it loads fast."""

import os
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from crocodil.checkpoints.hub import JSON_FILES, local_folder
from crocodil.runtime.config import Length, Steps, config, config_from_json, read_json
from crocodil.sampling.configs import Decoding, Drawing, with_knobs

FORMAT, FORMAT_VERSION = "crocodil model", 2
SETTINGS_FILE = "crocodil.json"
BUILTIN = "builtin"  # the model that ships with the package


class Method(StrEnum):
    """The generation method: where registers come from."""

    BASE = "base"  # none: plain masked diffusion
    CON_THEN_DISC = "conthendisc"  # Algorithm 2: from the prior
    CON_WITHIN_DISC = "conwithindisc"  # Algorithm 3: from the prior, and later from the conditional prior

    @classmethod
    def _missing_(cls, value: object) -> "Method":
        if isinstance(value, str) and value.lower() in list(cls):  # as the paper writes it: ConThenDisc
            return cls(value.lower())
        raise ValueError(f"no method {value!r}: take one of {', '.join(cls)}")


@config
class Settings:
    """The defaults of a model."""

    length: Length  # of a canvas in tokens
    lengths: tuple[Length, ...] = ()  # all canvas lengths of its training; default: `length` alone
    method: Method = Method.CON_WITHIN_DISC  # of generation, if none is named
    decoding: Decoding = field(default_factory=lambda: Decoding(temperature=1.0))  # of guided generation
    drawing: Drawing = field(default_factory=Drawing)
    distilled_steps: Steps | None = None  # for which priors were distilled by matching (D80); None: not known

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(sorted({*self.lengths, self.length})))

    def canvas(self, length: int | None) -> int:
        """Return the length of a canvas: the one asked for, if the model can fill it, or the default."""
        length = self.length if length is None else length
        if not isinstance(length, int):
            raise ValueError(f"length must be an integer, not {length!r}")
        if not 2 <= length <= self.lengths[-1]:
            raise ValueError(f"this model fills canvases of 2 to {self.lengths[-1]} tokens, not {length}")
        return length

    def method_or_own(self, method: Method | str | None) -> Method:
        """Return the method asked for, or the default."""
        return self.method if method is None else Method(method)

    def decoding_for(self, method: Method) -> Decoding:
        """Return the default config of a method. At temperature 0, a base would write the same text every time."""
        if method is Method.BASE:
            return Decoding(temperature=self.decoding.temperature or 1.0, top_p=self.decoding.top_p)
        return self.decoding

    def sampling(
        self, method: Method, decoding: Decoding | None, drawing: Drawing | None, knobs: dict[str, Any]
    ) -> tuple[Decoding, Drawing]:
        """Return the configs of a generation: those given, or the defaults, with single fields changed."""
        if method is not Method.CON_WITHIN_DISC and knobs.get("refresh_at"):
            raise ValueError(f"refresh_at is for method {Method.CON_WITHIN_DISC}: {method} draws registers once")
        decoding, drawing = with_knobs(decoding or self.decoding_for(method), drawing or self.drawing, knobs)
        return decoding, replace(drawing, refresh_at=()) if method is Method.CON_THEN_DISC else drawing


def check_interpolation_steps(steps: int) -> None:
    if steps < 2:
        raise ValueError("an interpolation needs at least 2 steps: both ends count")


def to_json(settings: Settings) -> dict[str, Any]:
    if not isinstance(settings.decoding.rule, str):
        raise ValueError("a model's settings name a reveal rule; a rule of your own cannot be saved")
    return {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(settings)}


def model_folder(path_or_name: str | os.PathLike[str]) -> Path:
    """Return the folder of a model, fetched from the hub if it is a name there."""
    folder = settings_file(path_or_name).parent  # first: another kind of model is refused before it is fetched
    return folder if path_or_name == BUILTIN else local_folder(path_or_name)


def settings_file(path_or_name: str | os.PathLike[str]) -> Path:
    """Return crocodil.json of a model. From the hub, no weights are fetched for it."""
    if path_or_name == BUILTIN:
        folder = Path(__file__).parent.parent / BUILTIN
    else:
        folder = local_folder(path_or_name, patterns=JSON_FILES)
    if not (folder / SETTINGS_FILE).is_file():
        raise ValueError(
            f"no model {str(path_or_name)!r}: a model is {BUILTIN!r}, or a folder with {SETTINGS_FILE}, "
            "here or on the hub (owner/name)"
        )
    return folder / SETTINGS_FILE


def read_settings(file: Path) -> Settings:
    values = read_json(file)
    name, version = values.pop("format", None), values.pop("format_version", None)
    if name != FORMAT or version not in (1, FORMAT_VERSION):
        raise ValueError(f"{file} is not version 1 or {FORMAT_VERSION} of this project's model format")
    if version == 1:
        values = _from_version_1(values, file)
    for part, config_class in (("decoding", Decoding), ("drawing", Drawing)):
        if isinstance(values.get(part), dict):  # a knob that is newer than the file has its default
            values[part] = asdict(config_class()) | values[part]
    values.setdefault("method", Settings.method)  # older files have neither
    values.setdefault("distilled_steps", Settings.distilled_steps)
    return config_from_json(Settings, values, file)


# Format 1 had all fields side by side; three of them were added later.
DEFAULTS_FOR_OLD_FILES: dict[str, Any] = {"coherence": 0.0, "rule": "confidence", "time_shift": 1.0}
_VERSION_1 = {
    "decoding": ("rule", "temperature", "top_p", "guidance"),
    "drawing": (
        "prior_steps",
        "refresh_steps",
        "eta",
        "pag_scale",
        "num_registers",
        "largest_offset",
        "time_shift",
    ),
}


def _from_version_1(values: Mapping[str, Any], file: Path) -> dict[str, Any]:
    flat = {**DEFAULTS_FOR_OLD_FILES, **values}
    flat["pag_scale"] = flat.pop("coherence")
    nested: dict[str, Any] = {}
    for part, names in _VERSION_1.items():
        if missing := [name for name in names if name not in flat]:
            raise ValueError(f"{file}: {missing[0]} is missing")
        nested[part] = {name: flat.pop(name) for name in names}
    return flat | nested
