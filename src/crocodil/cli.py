"""The command line: verbs, each of which turns its options into typed values and calls the library.

Heavy modules are imported inside the verbs, so that `crocodil --help` answers at once.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Masked diffusion for language, guided by continuous registers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
corpus = typer.Typer(help="Build, look at and move a corpus of programs.", no_args_is_help=True)
app.add_typer(corpus, name="corpus")

_OWN = {"python-files": "own_python", "plain-text": "own_text"}  # presets that read what you point them at
_FIXED = {"python-wheels": "python_wheels", "starcoder-python": "starcoder_python"}


@corpus.command()
def build(
    preset: Annotated[str, typer.Option(help=f"{', '.join([*_FIXED, *_OWN])}")],
    out: Annotated[Path, typer.Option(help="Where the corpus goes; a build begun there is taken up again.")],
    source: Annotated[
        Path | None,
        typer.Option(help="For python-files and plain-text: a folder, an archive, or .jsonl and .parquet files."),
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="An existing tokenizer.json, not a new one.")] = None,
    vocab_size: Annotated[int, typer.Option(help="Of the new tokenizer.")] = 8192,
    processes: Annotated[int | None, typer.Option(help="How many at once; all cores by default.")] = None,
) -> None:
    """Build a corpus: read, filter, deduplicate, split, tokenize."""
    from dataclasses import replace

    from crocodil.corpus.build import build as build_corpus
    from crocodil.presets import corpora

    if preset in _OWN:
        if source is None:
            raise ValueError(f"preset {preset} needs --source: a folder, an archive, or files with a text column")
        recipe = getattr(corpora, _OWN[preset])(source)
    elif preset in _FIXED:
        recipe = getattr(corpora, _FIXED[preset])()
    else:
        raise ValueError(f"no preset {preset!r}: take one of {', '.join([*_FIXED, *_OWN])}")
    recipe = replace(recipe, tokenizer=tokenizer, vocab_size=vocab_size)
    build_corpus(recipe, out, num_processes=processes)
    show(out, samples=0)


@corpus.command()
def show(
    directory: Path,
    samples: Annotated[int, typer.Option(help="How many programs to print.")] = 3,
    length: Annotated[int, typer.Option(help="Of the programs that are printed, in tokens.")] = 256,
) -> None:
    """Counts, lengths, licences, what was dropped and why, and a few programs."""
    from rich.console import Console

    from crocodil.corpus import report
    from crocodil.corpus.shards import Corpus

    console = Console()
    found = Corpus(directory)
    for table in report.tables(found):
        console.print(_table(table))
    for text in report.samples(found, count=samples, length=length):
        console.rule(style="dim")
        console.print(text, markup=False, highlight=False)


@corpus.command()
def card(directory: Path, out: Annotated[Path, typer.Option(help="The Markdown file to write.")]) -> None:
    """Write down the sources and licences of a corpus, package by package."""
    from crocodil.corpus import report
    from crocodil.corpus.shards import Corpus

    out.write_text("\n".join(report.card(Corpus(directory))), encoding="utf-8")
    typer.echo(f"written to {out}")


@corpus.command()
def lock(
    names: Annotated[Path, typer.Argument(help="A file of package names, separated by blanks.")],
    out: Annotated[Path, typer.Option(help="The manifest to write.")],
) -> None:
    """Pin the newest wheel of each package: name, version and sha256."""
    from crocodil.corpus.registry import lock as lock_names
    from crocodil.progress import progress

    listed = [word for line in names.read_text().splitlines() for word in line.split("#")[0].split()]
    if not listed:
        raise ValueError(f"{names} lists no package")
    with progress("asking the registry", len(listed), unit="packages") as advance:
        pins = lock_names(listed, found=advance)
    out.write_text("".join(f"{pin}\n" for pin in sorted(pins, key=lambda pin: pin.name.lower())))
    typer.echo(f"{len(pins)} of {len(listed)} packages have a wheel; pinned in {out}")


@corpus.command()
def verify(directory: Path) -> None:
    """Compare every file of a corpus with its checksum."""
    from crocodil.corpus.shards import Corpus

    Corpus(directory).verify()
    typer.echo(f"{directory} is whole")


@corpus.command()
def pack(
    directory: Path,
    out: Annotated[Path, typer.Option(help="A new folder for the pieces.")],
    piece_megabytes: Annotated[float, typer.Option(help="At most this large each.")] = 60.0,
) -> None:
    """Compress a corpus into pieces, to move it to another machine."""
    from crocodil.corpus.packing import pack as pack_corpus
    from crocodil.corpus.shards import Corpus

    for file in pack_corpus(Corpus(directory), out, piece_bytes=int(piece_megabytes * 1e6)):
        typer.echo(f"{file}  {file.stat().st_size / 1e6:.1f} MB")


@corpus.command()
def unpack(
    pieces: Annotated[Path, typer.Argument(help="The folder that holds all pieces.")],
    out: Annotated[Path, typer.Option(help="A new folder for the corpus.")],
) -> None:
    """Put a packed corpus together again, and verify it."""
    from crocodil.corpus.packing import unpack as unpack_corpus

    unpack_corpus(pieces, out)
    typer.echo(f"{out} is whole")


@app.command()
def train(
    stage: Annotated[str, typer.Argument(help="base, guided, registers, prior, conditional; or: show")],
    directory: Annotated[Path | None, typer.Argument(help="With show: the directory of a run.")] = None,
    preset: Annotated[str, typer.Option(help="tiny, small, paper, paper-one-gpu")] = "small",
    data: Annotated[Path | None, typer.Option(help="The corpus.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run: each stage has its folder in it.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Another run, whose earlier stages are built upon.")
    ] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Save and stop after this long.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="A field of the run: guided_objective.register_cosine=1.0")
    ] = None,
    llada: Annotated[Path | None, typer.Option(help="For the paper's presets: the folder of LLaDA-8B.")] = None,
    qwen: Annotated[Path | None, typer.Option(help="And of Qwen3-Embedding-0.6B.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the run will take, and stop.")] = False,
    gpus: Annotated[int, typer.Option(help="With --dry-run: how many devices share the run.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the accelerator where there is one.")] = None,
) -> None:
    """Train one stage of a run, or show how a run went. On several devices: torchrun -m crocodil.cli train ..."""
    if stage == "show":
        if directory is None:
            raise ValueError("crocodil train show needs the directory of a run")
        return _show_run(directory)
    from crocodil.corpus.shards import Corpus
    from crocodil.distributed import ranks
    from crocodil.presets.changes import changed
    from crocodil.presets.training import preset as preset_of
    from crocodil.training.run import Place, Pretrained, default_device, run_stage

    if data is None or out is None:
        raise ValueError("--data (a corpus) and --out (the run) are needed")
    found = Corpus(data)
    run = changed(preset_of(preset, found, Pretrained(llada, qwen)), changes or ())
    if dry_run:
        return _show_estimates(run, gpus)
    with ranks(device or default_device()) as all_ranks:
        place = Place(found, out, source or out, all_ranks)
        finished = run_stage(stage, run, place, resume=resume, max_minutes=max_minutes)
        if all_ranks.speaks:
            typer.echo(f"{out / stage}: " + ("finished" if finished else "stopped; go on with --resume"))
    return None


def _show_estimates(run: object, num_devices: int) -> None:
    from rich.console import Console

    from crocodil.training.estimate import estimates

    heads = ("stage", "trained", "frozen", "steps", "batch", "positions seen", "GB a device, about")
    rows = [
        (
            one.stage,
            *(f"{count:,}" for count in (one.trained, one.frozen, one.steps, one.batch, one.tokens)),
            f"{one.gigabytes:.1f}",
        )
        for one in estimates(run, num_devices=num_devices)  # type: ignore[arg-type]
    ]
    Console().print(_table([("What the run will take",), heads, *rows]))


def _show_run(directory: Path) -> None:
    from rich.console import Console

    from crocodil.training.history import curves, last_values

    console = Console()
    for stage, rows in last_values(directory).items():
        console.print(_table([(stage,), ("metric", "value"), *rows]))
    for title, plot in curves(directory).items():
        console.print(f"\n{title}", highlight=False)
        console.print(plot, markup=False, highlight=False)


def _table(rows: "list[tuple[str, ...]]") -> object:
    """First row title, second row heads; numbers to the right."""
    from rich.table import Table

    (title,), heads, *body = rows
    table = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if body and number and body[0][number][:1].isdigit() else "left")
    for row in body:
        table.add_row(*row)
    return table


def main() -> None:
    """One clear line instead of a traceback for what a user can set right."""
    try:
        app()
    except (ValueError, OSError) as error:
        typer.echo(f"crocodil: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("crocodil: stopped", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
