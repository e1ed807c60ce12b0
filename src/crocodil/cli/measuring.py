"""How `crocodil reproduce` measures, by a preset or a file, and what that costs (`--estimate`)."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from crocodil.cli import options
from crocodil.cli.root import table

if TYPE_CHECKING:
    from crocodil.reproduce.protocol import Protocol


class How(NamedTuple):
    """How things are measured, by a preset and options or by a protocol file."""

    protocol: "Protocol"
    judges: Sequence[str]
    embedder: str | None
    seed: int
    test_corpus: str | None = None  # the fingerprint that the file fixes
    digest: str | None = None  # of the file
    draft: Path | None = None  # the file, if it has no date yet

    def check_is_fixed(self) -> None:
        if self.draft is not None:
            raise ValueError(f"{self.draft} is a draft: give it a date and commit it before anything is measured")

    def check_compared(self, names: Collection[str]) -> None:
        """A protocol file names the models that are compared."""
        if self.digest is not None and (others := sorted(set(names) - set(self.protocol.compared))):
            named = ", ".join(self.protocol.compared) or "none"
            raise ValueError(f"the protocol compares no model {others[0]!r}: it names {named}")


def by_preset(given: Mapping[str, Any], paper_steps: bool) -> How:
    from crocodil.reproduce.protocol import protocol_named

    protocol = protocol_named(given["preset"] or "full")
    judges = (given["judge"] or options.DEFAULT_JUDGE,)
    return How(
        protocol.with_paper_steps() if paper_steps else protocol, judges, given["embedder"], given["seed"] or 0
    )


def by_file(file: Path, given: Mapping[str, Any], paper_steps: bool) -> How:
    from crocodil.reproduce.fixed_protocol import DRAFT, read_protocol

    fixed, digest = read_protocol(file)
    names = [name for name, value in given.items() if value is not None] + ["paper-steps"] * paper_steps
    if names:
        raise ValueError(f"--{names[0]} and --protocol exclude each other: the file fixes how things are measured")
    return How(
        fixed.protocol,
        fixed.judges,
        fixed.embedder,
        fixed.seed,
        fixed.test_corpus,
        digest,
        draft=file if fixed.date == DRAFT else None,
    )


def show_costs(
    experiments: Sequence[str], protocol: "Protocol", runs: Sequence[Path], lengths: Sequence[int]
) -> None:
    """Print rows, operations and GPU seconds of each experiment, for the model of a training run."""
    from rich.console import Console

    from crocodil.reproduce.measuring_cost import ESTIMATED, Estimator, Shapes, total
    from crocodil.sampling.configs import Drawing
    from crocodil.training.run_config import read_run_file

    if len(runs) != 1:
        raise ValueError("--estimate needs one --run: the shapes of the model's networks are in it")
    unknown = [name for name in experiments if name not in (*ESTIMATED, "all")]
    if unknown:
        raise ValueError(f"the cost of {unknown[0]} is not estimated: choose from {', '.join(ESTIMATED)}")
    shapes, rows, costs = Shapes.of_run(runs[0]), [], []
    for length in sorted(set(lengths or read_run_file(runs[0])["lengths"])):
        estimator = Estimator(shapes, length, drawing=Drawing(**protocol.drawing))
        for name, cost in estimator.experiments(protocol).items():
            if experiments == ["all"] or name in experiments:
                costs.append(cost)
                rows.append((f"{name}, {length} tokens", *_cells(cost)))
    heads = ("experiment", "rows", "samples", "PFLOP", "seconds on one H200")
    Console(width=100).print(table([("What the protocol costs",), heads, *rows, ("all", *_cells(total(costs)))]))
    typer.echo("Estimated for --compiled; loading and compiling take one to two minutes more for each command.")


def _cells(cost: "tuple[int, int, float, float]") -> tuple[str, ...]:
    rows, samples, flops, seconds = cost
    return f"{rows:,}", f"{samples:,}", f"{flops / 1e15:,.1f}", f"{seconds:,.0f}"
