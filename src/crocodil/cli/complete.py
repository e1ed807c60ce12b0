"""`crocodil complete`: text at a place in a file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from crocodil.cli import options
from crocodil.cli.answers import checked_method, print_answers
from crocodil.cli.root import USE, Format, app
from crocodil.cli.texts import read_text_or_stdin
from crocodil.pipeline.settings import BUILTIN
from crocodil.runtime.config import Guidance, Length
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.text.positions import parse_place, place_in


@app.command(rich_help_panel=USE)
@options.with_knobs_of(Decoding, Drawing)
def complete(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A text file; - reads stdin.")],
    *,
    at: Annotated[
        str,
        typer.Option(
            metavar="LINE[:COLUMN]",
            help="Where to insert text: after this line, or before this column of the line.",
        ),
    ],
    count: options.Count = 4,
    tokens: Annotated[
        int | None,
        options.number(Length, "Tokens per answer. Default: answers of several lengths.", panel=options.TEXT),
    ] = None,
    prompt_scale: Annotated[
        float,
        options.number(
            Guidance, "Scale of guidance by the prompt, for models with stage prompted.", panel=options.TEXT
        ),
    ] = 1.0,
    condition_scale: Annotated[
        float,
        options.number(
            Guidance, "Scale of guidance by the answer so far, for the same models.", panel=options.TEXT
        ),
    ] = 1.0,
    method: options.AnyMethod = None,
    length: options.Length = None,
    seed: options.Seed = 0,
    knobs: dict[str, Any],
    format: options.TextFormat = Format.TEXT,
    batch_size: options.BatchSize = None,
    timings: options.Timings = False,
    verbose: options.Verbose = False,
    model: options.Model = BUILTIN,
    device: options.Device = None,
) -> None:
    """Fill in text at a place in a file. Prints several answers, the most likely first.

    After a line, an answer gets its own lines, with the indentation that Python expects there. A blank line is
    replaced. All other text of the file stays unchanged.
    """
    place = place_in(read_text_or_stdin(file), *parse_place(at))
    method = checked_method(model, method, length, knobs)
    asked = {
        "count": count, "tokens": tokens, "method": method, "length": length, "seed": seed,
        "batch_size": batch_size, "prompt_scale": prompt_scale, "condition_scale": condition_scale, **knobs,
    }  # fmt: skip
    print_answers(place, model, device, asked, format, timings=timings, verbose=verbose)
