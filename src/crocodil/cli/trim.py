"""`crocodil trim`: remove the tokens of a causal checkpoint that a kind of text does not use."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from crocodil.checkpoints.hub import local_folder
from crocodil.cli.root import TRAIN, app

SAMPLE_CHARS = 60_000_000  # of a corpus; as many as a new tokenizer is trained on


@app.command(rich_help_panel=TRAIN)
def trim(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Llama, Qwen2 or Qwen3: a folder, or a name on the hub."),
    ],
    data: Annotated[
        Path, typer.Option(help="Your texts: a corpus, a folder, an archive, or .jsonl or .parquet files.")
    ],
    out: Annotated[Path, typer.Option(help="New folder for the trimmed checkpoint.")],
    size: Annotated[
        int,
        typer.Option(
            min=260,
            max=1 << 20,
            help="Number of tokens to keep, rounded up to a multiple of 64; at most all tokens that occur.",
        ),
    ] = 12_288,
) -> None:
    """Make a causal checkpoint smaller: keep only the tokens that occur most in your texts.

    The new checkpoint has fewer rows in the embedding and the output head. Give its tokenizer.json to `crocodil
    corpus build --tokenizer`. Every text can still be encoded and decoded exactly.
    """
    from crocodil.text.tokenizer import SPECIAL_TOKENS, Tokenizer
    from crocodil.text.trimming import count_tokens
    from crocodil.text.trimming import trim as trim_tokenizer

    if out.exists():
        raise ValueError(f"{out} exists: choose a new folder")
    folder = local_folder(model)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    counts = count_tokens(tokenizer, texts_of(data))
    if not counts:
        raise ValueError(f"{data} holds no text")
    trimmed = trim_tokenizer(tokenizer, counts, size=size)

    from crocodil.checkpoints.trimmed import write_trimmed

    write_trimmed(folder, out, trimmed)
    kept = sum(counts[old] for old in trimmed.old_ids[len(SPECIAL_TOKENS) :] if old is not None)
    typer.echo(
        f"{out}: {len(trimmed.tokenizer):,} of {len(tokenizer):,} tokens; they are {kept / counts.total():.2%} of "
        f"the {counts.total():,} tokens of these texts, of which {len(counts):,} differ"
    )


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a corpus (a random part of its train split) or of files."""
    from crocodil.corpus.shards import CORPUS_FILE, Corpus
    from crocodil.corpus.sources import Skip
    from crocodil.corpus.summary import random_texts
    from crocodil.presets.corpora import TEXT_SUFFIXES, files_or_rows

    if (path / CORPUS_FILE).exists():
        yield from random_texts(Corpus(path), max_chars=SAMPLE_CHARS)
        return
    for unit in files_or_rows(path, (".py", *TEXT_SUFFIXES)).units():
        for item in unit.read():
            if not isinstance(item, Skip):
                yield item.data.decode("utf-8", "ignore")
