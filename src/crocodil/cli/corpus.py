"""`crocodil corpus`: build, inspect, verify and move a corpus of programs."""

from pathlib import Path
from typing import Annotated

import typer

from crocodil.checkpoints.hub import tokenizer_file
from crocodil.cli.root import TRAIN, app, check_installed, table

corpus = typer.Typer(help="Build, inspect, verify and move a training corpus.", no_args_is_help=True)
app.add_typer(corpus, name="corpus", rich_help_panel=TRAIN)

_FROM_SOURCE = {"python-files": "own_python", "plain-text": "own_text"}  # presets that read --source
_FIXED = {
    "python-wheels": "python_wheels",
    "fresh-test": "fresh_test",
    "starcoder-python": "starcoder_python",
}


Directory = Annotated[Path, typer.Argument(metavar="CORPUS", help="The folder of the corpus.")]
Processes = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Number of worker processes. Default: one per core.")
]


@corpus.command()
def build(
    preset: Annotated[str, typer.Option(help=f"One of {', '.join([*_FIXED, *_FROM_SOURCE])}.")],
    out: Annotated[Path, typer.Option(help="Folder for the corpus. An interrupted build is continued.")],
    source: Annotated[
        Path | None,
        typer.Option(help="For python-files and plain-text: a folder, an archive, or .jsonl or .parquet files."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Do not train a new tokenizer; use this tokenizer.json, or that of a model on the hub."),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CORPUS", help="Leave out documents that also occur in this corpus. Can be repeated."
        ),
    ] = None,
    vocab_size: Annotated[
        int, typer.Option(min=260, max=1 << 20, help="Vocabulary size of a new tokenizer.")
    ] = 8192,
    processes: Processes = None,
) -> None:
    """Build a corpus: read, filter, deduplicate, split, tokenize."""
    from dataclasses import replace

    check_installed("data", "rensa")
    from crocodil.corpus.build import build as build_corpus
    from crocodil.presets import corpora

    if preset in _FROM_SOURCE:
        if source is None:
            raise ValueError(f"preset {preset} needs --source: a folder, an archive, or files with a text column")
        recipe = getattr(corpora, _FROM_SOURCE[preset])(source)
    elif preset in _FIXED:
        recipe = getattr(corpora, _FIXED[preset])()
    else:
        raise ValueError(f"no preset {preset!r}: choose one of {', '.join([*_FIXED, *_FROM_SOURCE])}")
    existing = None if tokenizer is None else tokenizer_file(tokenizer)
    recipe = replace(recipe, tokenizer=existing, vocab_size=vocab_size, against=tuple(against or ()))
    build_corpus(recipe, out, num_processes=processes)
    show(out, samples=0)


@corpus.command()
def show(
    directory: Directory,
    samples: Annotated[int, typer.Option(min=0, max=1_000_000, help="Number of programs to print.")] = 3,
    length: Annotated[
        int, typer.Option(min=3, max=1 << 20, help="Length of the printed programs in tokens.")
    ] = 256,
) -> None:
    """Print counts, lengths, licences, why files were dropped, and a few programs."""
    from rich.console import Console
    from rich.text import Text

    from crocodil.corpus import summary
    from crocodil.corpus.shards import Corpus

    console = Console()
    opened = Corpus(directory)
    for rows in summary.tables(opened):
        console.print(table(rows))
    for text in summary.samples(opened, count=samples, length=length):
        console.rule(style="dim")
        console.print(Text(text), soft_wrap=True)
    for warning in summary.warnings(opened):
        typer.echo(f"crocodil: warning: {warning}", err=True)


@corpus.command()
def pairs(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="A corpus, or a .jsonl file whose rows have a prompt and an answer."
        ),
    ],
    out: Annotated[Path, typer.Option(help="New folder for the pairs.")],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Kind of pairs to cut from a corpus: body, middle or block. Can be repeated. Default: all."
        ),
    ] = None,
    per_document: Annotated[
        int, typer.Option(min=1, max=10_000, help="Maximum number of pairs of each kind per document.")
    ] = 4,
    max_lines: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of lines of an answer.")] = 32,
    max_chars: Annotated[
        int, typer.Option(min=1, max=1 << 30, help="Maximum number of characters of a pair.")
    ] = 4000,
    count: Annotated[
        int | None, typer.Option(min=1, max=1 << 30, help="Keep this many random pairs of each kind and split.")
    ] = None,
    held_out: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of rows without a split that go to valid, and to test.")
    ] = 0.01,
    processes: Processes = None,
) -> None:
    """Cut programs into prompts and answers, or read pairs from a file.

    body: signature and docstring -> body. middle: prefix and suffix -> middle. block: comment -> block.
    """
    from rich.console import Console

    from crocodil.corpus.cuts import KINDS, Cuts
    from crocodil.corpus.pairs import write_pairs

    if wrong := [name for name in kind or () if name not in KINDS]:
        raise ValueError(f"no kind {wrong[0]!r}: take some of {', '.join(KINDS)}")
    kinds = tuple(name for name in KINDS if kind is None or name in kind)
    cuts = Cuts(kinds=kinds, per_document=per_document, max_lines=max_lines, max_chars=max_chars)
    written = write_pairs(source, out, cuts=cuts, count=count, held_out=held_out, num_processes=processes)
    Console().print(table(written.rows()))


@corpus.command()
def card(directory: Directory, out: Annotated[Path, typer.Option(help="Markdown file to write.")]) -> None:
    """Write a corpus card: sources and licences of every package."""
    from crocodil.corpus import summary
    from crocodil.corpus.shards import Corpus

    _write(out, "\n".join(summary.card(Corpus(directory))))
    typer.echo(f"wrote {out}")


@corpus.command()
def lock(
    names: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file of package names, separated by whitespace.")
    ],
    out: Annotated[Path, typer.Option(help="Manifest to write.")],
) -> None:
    """Pin the newest wheel of each package by name, version and SHA-256."""
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
    typer.echo(f"pinned {len(pins)} of {len(listed)} packages in {out}")
    if left_out := without_pin(listed, pins):
        typer.echo(f"crocodil: warning: packages without a wheel were left out: {', '.join(left_out)}", err=True)


@corpus.command()
def verify(directory: Directory) -> None:
    """Check every file of a corpus against its SHA-256 checksum."""
    from crocodil.corpus.shards import Corpus

    Corpus(directory).verify()
    typer.echo(f"{directory}: all files match their checksums")


@corpus.command()
def pack(
    directory: Directory,
    out: Annotated[Path, typer.Option(help="New folder for the pieces.")],
    piece_megabytes: Annotated[
        float, typer.Option(min=0.001, max=1e6, help="Maximum size of a piece in MB.")
    ] = 60.0,
) -> None:
    """Compress a corpus into pieces that can be moved to another machine."""
    from crocodil.corpus.packing import pack as pack_corpus
    from crocodil.corpus.shards import Corpus

    for file in pack_corpus(Corpus(directory), out, piece_bytes=int(piece_megabytes * 1e6)):
        typer.echo(f"{file}  {file.stat().st_size / 1e6:.1f} MB")


@corpus.command()
def unpack(
    pieces: Annotated[Path, typer.Argument(metavar="DIR", help="The folder with all pieces.")],
    out: Annotated[Path, typer.Option(help="New folder for the corpus.")],
) -> None:
    """Restore a packed corpus and verify it."""
    from crocodil.corpus.packing import unpack as unpack_corpus

    unpack_corpus(pieces, out)
    typer.echo(f"{out}: all files match their checksums")


def _write(file: Path, text: str) -> None:
    from crocodil.runtime.atomic import whole_file

    with whole_file(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
