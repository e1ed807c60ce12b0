"""Fingerprints of the documents of other corpora, so that a new corpus can leave these documents out."""

from collections.abc import Sequence
from pathlib import Path

from crocodil.corpus.documents import Document
from crocodil.corpus.harvest import INDEX_FILE, Index
from crocodil.corpus.selection import Catalogue, catalogue
from crocodil.corpus.shards import CORPUS_FILE, TOKENIZER_FILE, Corpus, Shard
from crocodil.corpus.splits import SPLITS
from crocodil.runtime.atomic import whole_directory
from crocodil.runtime.progress import progress
from crocodil.text.tokenizer import Tokenizer


def check_known(corpora: Sequence[Path]) -> None:
    """Raise an error if one of these is neither a corpus nor a begun build."""
    for folder in corpora:
        if not _harvested(folder):
            Corpus(folder)


def known_documents(corpora: Sequence[Path], work: Path) -> Catalogue | None:
    """Return the fingerprints of all documents of these corpora, or None if there are no corpora.

    A build has them in its folder `work`, even if it is not finished. Those of a corpus without it are computed
    from its shards, and stored in `work`.
    """
    if not corpora:
        return None
    folders = [
        folder
        for number, corpus in enumerate(corpora)
        for folder in _harvested(corpus) or _indexed(Corpus(corpus), work / f"known-{number}")
    ]
    return catalogue(folders, work / "known.bin")


def known_shards(corpora: Sequence[Path], tokenizer: Path) -> list[Shard]:
    """Return the training shards of those corpora that have the same tokenizer, so that tokens can be compared."""
    finished = [folder for folder in corpora if (folder / CORPUS_FILE).exists()]
    same = [folder for folder in finished if (folder / TOKENIZER_FILE).read_bytes() == tokenizer.read_bytes()]
    return [shard for folder in same for shard in Corpus(folder).shards("train")]


def _harvested(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob(f"work/harvest-*/[0-9]*/{INDEX_FILE}"))


def _indexed(corpus: Corpus, target: Path) -> list[Path]:
    """Write an index of each shard to a folder, and return these folders."""
    tokenizer = Tokenizer.load(corpus.directory / TOKENIZER_FILE)
    shards = [shard for split in SPLITS for shard in corpus.shards(split)]
    folders = [target / f"{number:05d}" for number in range(len(shards))]
    target.mkdir(exist_ok=True)
    with progress("reading another corpus", len(shards), unit="shards") as advance:
        for shard, folder in zip(shards, folders, strict=True):
            if not folder.exists():
                with whole_directory(folder) as unfinished:
                    _index(shard, corpus, tokenizer).save(unfinished / INDEX_FILE)
            advance(1)
    return folders


def _index(shard: Shard, corpus: Corpus, tokenizer: Tokenizer) -> Index:
    index = Index()
    for row, path in zip(shard.documents, shard.paths, strict=True):
        package = corpus.packages[row["package"]]
        text = tokenizer.decode(shard.tokens[row["start"] : row["start"] + row["length"]].tolist())
        index.add(Document(package["name"], path, package["licence"], text, []))
    return index
