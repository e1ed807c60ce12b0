"""Complete shapes as values: what the paper used, number by number."""

from pathlib import Path

from crocodil.corpus.documents import paragraphs
from crocodil.corpus.filters import FOR_TEXT
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.registry import read_manifest
from crocodil.corpus.sources import Files, HubDataset, Rows, Source, Wheels
from crocodil.models.demasker import DemaskerConfig
from crocodil.models.llada import LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoderConfig


def llada_8b() -> LLaDAConfig:
    """GSAI-ML/LLaDA-8B-Base and -Instruct: 291 tensors, 8,015,581,184 parameters."""
    return LLaDAConfig(
        vocab_size=126_464,
        width=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        mlp_width=12_288,
        mask_id=126_336,
        eos_id=126_081,
        pad_id=126_081,
    )


def paper_demasker() -> DemaskerConfig:
    """Sec. 5: LLaDA-8B guided by 128 registers of width 1024."""
    return DemaskerConfig(backbone=llada_8b())


def paper_encoder() -> RegisterEncoderConfig:
    """Sec. 5: Qwen3-Embedding-0.6B with 127 suffix registers behind its summary vector."""
    return RegisterEncoderConfig(
        vocab_size=151_669,
        width=1024,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_width=128,
        mlp_width=3072,
        end_id=151_643,
    )


def paper_prior() -> RegisterDenoiserConfig:
    """App. E: 28 layers, "roughly 400M"; without cross-attention 362M (decision D22)."""
    return RegisterDenoiserConfig()


def paper_conditional_prior() -> RegisterDenoiserConfig:
    """App. E, for ConWithinDisc: cross-attention to all 128 registers of the visible text; 482M (D22)."""
    return RegisterDenoiserConfig(condition_width=1024, condition_length=128)


# ---------------------------------------------------------------- corpora

MANIFEST = Path(__file__).parent / "corpus" / "manifests" / "python-wheels.txt"


def python_wheels() -> Recipe:
    """Permissively licensed Python from published wheels: what can be rebuilt wherever pip works."""
    return Recipe(source=Wheels(tuple(read_manifest(MANIFEST))))


def starcoder_python() -> Recipe:
    """The paper's data: the Python subset of StarCoder's, from the hub; its authors chose the licences."""
    return Recipe(source=HubDataset(), permissive_only=False, package_cap_chars=1_000_000)


def own_python(path: Path) -> Recipe:
    """Your own programs: a folder, an archive, or tables with a text column. Nothing asks for a licence."""
    return Recipe(
        source=_own(path, (".py",)),
        permissive_only=False,
        hold_out_families=False,
        valid_share=0.05,
        test_share=0.05,
    )


def own_text(path: Path) -> Recipe:
    """Your own texts of any kind: only what fits any text is filtered."""
    return Recipe(
        source=_own(path, (".txt", ".md", ".rst")),
        filters=FOR_TEXT,
        cut=paragraphs,
        strip_notice=False,
        permissive_only=False,
        hold_out_families=False,
        valid_share=0.05,
        test_share=0.05,
    )


def _own(path: Path, suffixes: tuple[str, ...]) -> Source:
    tables = (".jsonl", ".jsonl.gz", ".parquet")
    is_table = path.name.endswith(tables)
    if path.is_dir():
        is_table = any(file.name.endswith(tables) for file in path.rglob("*"))
    return Rows(path) if is_table else Files(path, suffixes)
