"""`crocodil corpus`: build, look at and move a corpus of programs."""

from pathlib import Path
from typing import Annotated

import typer

from crocodil.cli.root import app, table

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
    vocab_size: Annotated[int, typer.Option(min=260, max=1 << 20, help="Of the new tokenizer.")] = 8192,
    processes: Annotated[
        int | None, typer.Option(min=1, max=1024, help="How many at once; all cores by default.")
    ] = None,
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
    samples: Annotated[int, typer.Option(min=0, max=1_000_000, help="How many programs to print.")] = 3,
    length: Annotated[
        int, typer.Option(min=3, max=1 << 20, help="Of the programs that are printed, in tokens.")
    ] = 256,
) -> None:
    """Counts, lengths, licences, what was dropped and why, and a few programs."""
    from rich.console import Console
    from rich.text import Text

    from crocodil.corpus import summary
    from crocodil.corpus.shards import Corpus

    console = Console()
    found = Corpus(directory)
    for rows in summary.tables(found):
        console.print(table(rows))
    for text in summary.samples(found, count=samples, length=length):
        console.rule(style="dim")
        console.print(Text(text), soft_wrap=True)
    for warning in summary.warnings(found):
        typer.echo(f"crocodil: warning: {warning}", err=True)


@corpus.command()
def card(directory: Path, out: Annotated[Path, typer.Option(help="The Markdown file to write.")]) -> None:
    """Write down the sources and licences of a corpus, package by package."""
    from crocodil.corpus import summary
    from crocodil.corpus.shards import Corpus

    _write(out, "\n".join(summary.card(Corpus(directory))))
    typer.echo(f"written to {out}")


@corpus.command()
def lock(
    names: Annotated[Path, typer.Argument(help="A file of package names, separated by blanks.")],
    out: Annotated[Path, typer.Option(help="The manifest to write.")],
) -> None:
    """Pin the newest wheel of each package: name, version and sha256."""
    from crocodil.corpus.registry import lock as lock_names
    from crocodil.corpus.registry import read_names, without_pin
    from crocodil.runtime.atomic import plain_file
    from crocodil.runtime.progress import progress

    plain_file(out)  # first: the registry may take minutes to answer
    listed = read_names(names)
    with progress("asking the registry", len(listed), unit="packages") as advance:
        pins = lock_names(listed, on_names=advance)
    if not pins:
        raise ValueError(f"none of the {len(listed)} packages of {names} has a wheel: is the registry reachable?")
    _write(out, "".join(f"{pin}\n" for pin in sorted(pins, key=lambda pin: pin.name.lower())))
    typer.echo(f"{len(pins)} of {len(listed)} packages have a wheel; pinned in {out}")
    if left_out := without_pin(listed, pins):
        typer.echo(f"crocodil: warning: left out, without a wheel: {', '.join(left_out)}", err=True)


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
    piece_megabytes: Annotated[float, typer.Option(min=0.001, max=1e6, help="At most this large each.")] = 60.0,
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


def _write(file: Path, text: str) -> None:
    from crocodil.runtime.atomic import whole_file

    with whole_file(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
