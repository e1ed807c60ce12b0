"""How answers to a prompt are printed, for `generate --prompt` and `complete`."""

from typing import Any

import typer

from crocodil.cli.root import Format
from crocodil.pipeline.settings import Method, read_settings, settings_file
from crocodil.sampling.configs import with_knobs
from crocodil.text.positions import Place


def print_answers(
    place: Place,
    model: str,
    device: str | None,
    asked: dict[str, Any],
    format: Format,
    *,
    timings: bool,
    verbose: bool,
) -> None:
    """Print the answers at a place, the most likely first. With jsonl, each has its likelihood bound in nats."""
    from crocodil.cli.display import Printer, warn_of_cut
    from crocodil.pipeline import Crocodil

    pipe = Crocodil.from_pretrained(model, device=device)
    answers = pipe.complete(place.prefix, place.suffix, at_column=place.at_column, **asked)
    warn_of_cut(place, answers)
    about = {"method": str(asked["method"]), "seed": asked["seed"]}
    printer = Printer(format, timings=timings, about=about)
    indentation = place.prefix[place.prefix.rfind("\n") + 1 :] if place.at_column else ""
    for answer in answers:
        printer.add(indentation + answer.text, answer.cost, answers.seconds / len(answers), nats=answer.nats)
    if verbose:
        calls = sum(answer.cost.demasker_calls for answer in answers)
        typer.echo(
            f"{len(answers)} answers, {calls} demasker calls, {answers.seconds:.1f} s to generate and "
            f"{answers.ranking.seconds:.1f} s to rank",
            err=True,
        )


def checked_method(model: str, method: Method | None, length: int | None, knobs: dict[str, Any]) -> Method:
    """Check the options for a model with registers; return the method, by default the model's own."""
    settings = read_settings(settings_file(model))
    method = settings.method_or_own(method)
    decoding, _ = with_knobs(settings.decoding_for(method), settings.drawing, knobs)
    decoding.plan(settings.canvas(length))  # raises if the calls do not fit
    return method
