"""Estimate what a protocol costs before anything is measured: rows, operations and seconds on one GPU."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

from crocodil.models.demasker import DemaskerConfig
from crocodil.models.register_denoiser import RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoderConfig
from crocodil.pipeline import Method
from crocodil.reproduce.experiments.quality import OF_MODEL, ORACLE
from crocodil.reproduce.protocol import Protocol, blocks_and_calls
from crocodil.runtime.config import read_as
from crocodil.sampling.configs import Decoding, Drawing, with_knobs
from crocodil.training.run_config import RUN_FILE, blocks_of, read_run_file
from crocodil.training.work import demasker_flops, denoiser_flops, encoder_flops

BATCH = 256  # samples that are decoded together on a GPU
GUIDED = (Method.CON_THEN_DISC, Method.CON_WITHIN_DISC)
ESTIMATED = ("reference", "anchor", "likelihood", "autoencoder", "sweep", "generation", "seconds")


class Rates(NamedTuple):
    """The speed of a machine. The defaults are for one H200; the sources are in this repository."""

    decoding: float = 150e12  # operations per second of demasker calls: 133 to 195 in results/first/seconds.jsonl
    judging: float = 150e12  # operations per second of the judge, which reads each text twice: assumed
    denoiser_seconds: float = 2.1e-3  # per denoiser call on a batch of any size: from the same rows
    row_seconds: float = 1.3  # per row, for clustering and all else: the first model's sweeps without decoding


class Cost(NamedTuple):
    """What some rows of one experiment cost."""

    rows: int
    samples: int
    flops: float
    seconds: float


class Shapes(NamedTuple):
    """The networks of a model."""

    demasker: DemaskerConfig
    encoder: RegisterEncoderConfig
    prior: RegisterDenoiserConfig
    conditional: RegisterDenoiserConfig

    @classmethod
    def of_run(cls, directory: Path) -> "Shapes":
        """Read the shapes from the record of a training run."""
        values = read_run_file(directory)
        if missing := [name for name in cls._fields if name not in values]:
            raise ValueError(f"{directory / RUN_FILE} has no {missing[0]}: it is not the record of a run")
        kinds = cls.__annotations__
        shapes = cls(**{name: read_as(kinds[name], values[name], directory / RUN_FILE) for name in cls._fields})
        if values.get("denoiser_begins_as_demasker"):
            denoiser = blocks_of(shapes.demasker, shapes.conditional, text_length=min(values["lengths"]))
            shapes = shapes._replace(conditional=denoiser)
        is_both = "prior" not in values.get("distil_objective", {}).get("teachers", ["prior"])
        return shapes._replace(prior=shapes.conditional) if is_both else shapes


@dataclass(frozen=True)
class Estimator:
    """The shapes of a model and the speed of a machine."""

    shapes: Shapes
    length: int
    drawing: Drawing = field(default_factory=Drawing)  # of the model's settings
    judge_parameters: float = 0.5e9
    rates: Rates = field(default_factory=Rates)

    def experiments(self, protocol: Protocol) -> dict[str, Cost]:
        """Return the cost of each experiment of `ESTIMATED`, in the order in which they run."""
        protocol = protocol.at(self.length)
        costs: dict[str, Callable[[Protocol], Cost]] = {
            "reference": lambda protocol: self._judged(1, 2 * protocol.num_samples),
            "anchor": lambda protocol: self._judged(1, protocol.num_samples),
            "likelihood": self._likelihood,
            "autoencoder": self._autoencoder,
            "sweep": lambda protocol: total([*starmap(self.row, rows_on_valid(protocol, self.length))]),
            "generation": lambda protocol: total([*starmap(self.row, rows_on_test(protocol, self.length))]),
            "seconds": self._seconds,
        }
        return {name: costs[name](protocol) for name in ESTIMATED}

    def row(self, method: str, calls: int, candidate: Mapping[str, Any], samples: int) -> Cost:
        """Return the cost of one row of generated programs, judged."""
        flops, seconds = self._generated(method, calls, candidate, samples)
        judged = self._judged(1, samples)
        return Cost(1, samples, flops + judged.flops, seconds + judged.seconds)

    def _generated(
        self, method: str, calls: int, candidate: Mapping[str, Any], samples: int
    ) -> tuple[float, float]:
        """Return operations and seconds of decoding, and of drawing registers."""
        backbone, name = self.shapes.demasker.backbone, method.rpartition(OF_MODEL)[2]
        if name == Method.BASE:
            flops = samples * calls * demasker_flops(backbone, positions=self.length, rows=self.length)
            return flops, flops / self.rates.decoding
        prior, conditional = self.shapes.prior, self.shapes.conditional
        decoding, drawing = with_knobs(Decoding(), self.drawing, dict(candidate))
        positions = self.length + 2 + (drawing.num_registers or prior.num_registers)
        demasking = demasker_flops(backbone, positions=positions, rows=self.length)
        encoding = encoder_flops(self.shapes.encoder, positions=self.length + self.shapes.encoder.num_registers)
        steps = [0, 0] if name == ORACLE else [drawing.prior_steps, drawing.refresh_steps]
        if name == Method.CON_THEN_DISC:
            steps[1] = encoding = 0
        per_step = drawing.calls_per_step
        denoising = per_step * (steps[0] * denoiser_flops(prior) + steps[1] * denoiser_flops(conditional))
        decoded = samples * (calls * decoding.calls_per_step * demasking + encoding)
        drawing_seconds = math.ceil(samples / BATCH) * per_step * sum(steps) * self.rates.denoiser_seconds
        return decoded + samples * denoising, decoded / self.rates.decoding + drawing_seconds

    def _judged(self, rows: int, samples: int) -> Cost:
        """Return the cost of judging: texts are as long as the canvas at most."""
        flops = 2 * samples * self.length * 2 * self.judge_parameters
        return Cost(rows, samples, flops, flops / self.rates.judging + rows * self.rates.row_seconds)

    def _likelihood(self, protocol: Protocol) -> Cost:
        samples = 2 * protocol.num_bound  # of two splits
        per_call = demasker_flops(self.shapes.demasker.backbone, positions=self.length, rows=self.length / 2)
        flops = samples * protocol.num_maskings * per_call
        return Cost(2, samples, flops, flops / self.rates.decoding)

    def _autoencoder(self, protocol: Protocol) -> Cost:
        rows = blocks_and_calls(self.length, protocol.table_rows)
        return total([self.row(ORACLE, calls, {}, protocol.num_copied) for _, calls in rows])

    def _seconds(self, protocol: Protocol) -> Cost:
        """Each point is generated twice and not judged; recording a new shape takes about a second."""
        points = [point for point in rows_on_test(protocol, self.length) if point[0] != ORACLE]
        count = protocol.num_clocked
        parts = [self._generated(method, calls, candidate, 2 * count) for method, calls, candidate, _ in points]
        flops, seconds = (sum(values) for values in zip(*parts, strict=True))
        return Cost(len(points), len(points) * 2 * count, flops, seconds + len(points) * self.rates.row_seconds)


Point = tuple[str, int, Mapping[str, Any], int]  # method, calls, candidate, samples


def total(costs: Sequence[Cost]) -> Cost:
    return Cost(*map(sum, zip(*costs, strict=True))) if costs else Cost(0, 0, 0.0, 0.0)


def rows_on_test(protocol: Protocol, length: int) -> Iterator[Point]:
    """Yield the rows of the test split. Which candidates win is not known: take the first of each method."""
    for method, calls in _points(protocol, length):
        yield method, calls, _candidates(protocol, method)[0], protocol.num_samples


def rows_on_valid(protocol: Protocol, length: int) -> Iterator[Point]:
    """Yield the rows of the validation split; none if settings are chosen at another length."""
    if protocol.is_chosen_elsewhere(length):
        return
    swept = {(method, protocol.swept_for(calls, length)) for method, calls in _points(protocol, length)}
    finals = {(method, calls) for method, calls in swept if calls > protocol.swept_calls[-1]}
    swept |= {(method, protocol.swept_calls[-1]) for method, _ in finals}
    for method, calls in sorted(swept):
        candidates = _candidates(protocol, method)
        if method != ORACLE and len(candidates) > 1:
            count = protocol.num_swept_at(calls, num_candidates=len(candidates))
            yield from ((method, calls, candidate, protocol.num_swept) for candidate in candidates[:count])


def _points(protocol: Protocol, length: int) -> Iterator[tuple[str, int]]:
    for method in (*Method, *([ORACLE] if protocol.with_oracle else [])):
        for calls in protocol.calls(length, guided=method != Method.BASE):
            yield str(method), calls
    for name in protocol.compared:
        for method in GUIDED:
            yield from ((f"{name}{OF_MODEL}{method}", calls) for calls in protocol.compared_calls)


def _candidates(protocol: Protocol, method: str) -> list[dict[str, Any]]:
    name, _, of_model = method.rpartition(OF_MODEL)
    return protocol.candidates(guided=of_model != Method.BASE, compared=name or None)
