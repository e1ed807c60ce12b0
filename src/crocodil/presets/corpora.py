"""Recipes of corpora: one that can be rebuilt anywhere, the paper's, and your own files."""

from pathlib import Path

from crocodil.corpus import manifests
from crocodil.corpus.documents import paragraphs
from crocodil.corpus.filters import FOR_TEXT
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.registry import read_manifest
from crocodil.corpus.sources import TABLES, Files, HubDataset, Rows, Source, Wheels

TEXT_SUFFIXES = (".txt", ".md", ".rst")
MANIFEST = Path(manifests.__file__).parent / "python-wheels.txt"
FRESH_TEST = MANIFEST.with_name("fresh-test.txt")  # no package family of MANIFEST


def python_wheels() -> Recipe:
    """Permissively licensed Python from published wheels; can be rebuilt wherever pip works."""
    return Recipe(source=Wheels(tuple(read_manifest(MANIFEST))), split_key="crocodil")


def fresh_test() -> Recipe:
    """Python from wheels of other package families than those of `python_wheels`: all of it is for tests."""
    return Recipe(source=Wheels(tuple(read_manifest(FRESH_TEST))), valid_share=0.0, test_share=1.0)


def starcoder_python() -> Recipe:
    """The paper's data: the Python subset of StarCoder's data from the hub; its authors selected the licences."""
    return Recipe(source=HubDataset(), permissive_only=False, package_cap_chars=1_000_000)


def own_python(path: Path) -> Recipe:
    """Your own programs: a folder, an archive, or tables with a text column. Licences are not checked."""
    return Recipe(
        source=files_or_rows(path, (".py",)),
        permissive_only=False,
        hold_out_families=False,
        valid_share=0.05,
        test_share=0.05,
    )


def own_text(path: Path) -> Recipe:
    """Your own texts of any kind; only filters that fit any text are applied."""
    return Recipe(
        source=files_or_rows(path, TEXT_SUFFIXES),
        filters=FOR_TEXT,
        cut=paragraphs,
        strip_notice=False,
        permissive_only=False,
        hold_out_families=False,
        valid_share=0.05,
        test_share=0.05,
    )


def files_or_rows(path: Path, suffixes: tuple[str, ...]) -> Source:
    """Return the source for a folder, an archive or a table; a folder with both files and tables is refused."""
    names = sorted(file.name for file in path.rglob("*") if not file.is_dir()) if path.is_dir() else [path.name]
    table = next((name for name in names if name.endswith(TABLES)), None)
    file = next((name for name in names if name.endswith(suffixes)), None)
    if table and file:
        raise ValueError(
            f"{path} holds both tables ({table}) and text files ({file}): use a folder with one kind only"
        )
    return Rows(path) if table else Files(path, suffixes)
