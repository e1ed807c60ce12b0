"""Imports point down, and third-party libraries enter by their doors."""

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import crocodil

SOURCE = Path(crocodil.__file__).parent
FIXTURE = Path(__file__).parent / "fixtures" / "model-v1"

# Who may import whom: each module or package stands on the layers below it.
LAYERS = [
    {"shapes", "seeding", "runtime"},
    {"processes"},
    {"models"},
    {"sampling"},
    {"objectives", "metrics"},
    {"text"},
    {"corpus", "checkpoints"},
    {"training", "pipeline", "judges"},
    {"presets"},
    {"reproduce", "play"},
    {"cli"},
]
ARROWS_INSIDE = {
    ("models.causal_head", "models.llada"),
    ("models.demasker", "models.llada"),
    ("models.register_denoiser", "models.demasker"),
    ("models.register_denoiser", "models.demasker_body"),
    ("models.register_denoiser", "models.denoiser_blocks"),
    ("models.demasker_body", "models.demasker"),
    ("models.demasker_body", "models.llada"),
    ("models.register_critic", "models.register_denoiser"),
    ("models.register_encoder", "models.llada"),
    ("models.denoiser_starts", "models.demasker"),
    ("models.denoiser_starts", "models.denoiser_blocks"),
    ("models.denoiser_starts", "models.register_denoiser"),
}  # the only ones between modules of mathematics or networks
SAME_NAME = {"llada"}  # the network, and its checkpoints
DOORS = {
    "transformers": {"text.tokenizer", "text.chat", "checkpoints", "judges"},
    "datasets": {"corpus"},
    "faiss": {"metrics"},
    "gguf": {"judges.gguf"},
    "huggingface_hub": {"checkpoints.hub"},
    "rapidfuzz": {"metrics"},
    "torch.distributed": {"runtime.distributed"},
    "matplotlib": {"reproduce.figures"},
    "markdown_it": {"reproduce.document"},
    "typer": {"cli"},
    "rich": {"cli", "runtime.progress"},
    "peft": {"training.adapting"},
    "pydantic": {"runtime.config"},
    "starlette": {"play.server", "cli.play"},
    "uvicorn": {"cli.play"},
}


def layer_of(module: str) -> int:
    return next(level for level, names in enumerate(LAYERS) if module.split(".")[0] in names)


@cache  # of a copy that differs in one file, the others are known
def imported(source: str) -> set[str]:
    """Every module that a file imports, at its top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def may_import(module: str, target: str) -> bool:
    if layer_of(target) != layer_of(module):
        return layer_of(target) < layer_of(module)
    same_package = "." in module and target.split(".")[0] == module.split(".")[0]
    is_mathematics_or_network = module.split(".")[0] in {"processes", "models"}
    return (module, target) in ARROWS_INSIDE or (same_package and not is_mathematics_or_network)


def may_enter(module: str, library: str) -> bool:
    return bool({module, module.split(".")[0]} & DOORS[library])


def violations(source: Path) -> list[str]:
    files = {
        ".".join(file.relative_to(source).with_suffix("").parts): file
        for file in source.rglob("*.py")
        if file.name != "__init__.py"
    }
    found = []
    for module, file in sorted(files.items()):
        for name in sorted(imported(file.read_text())):
            if name.startswith("crocodil."):
                path = name.removeprefix("crocodil.")
                target = max((m for m in files if f"{path}.".startswith(f"{m}.")), key=len, default=path)
                if not may_import(module, target):
                    found.append(f"{module} imports {target}")
            for library in DOORS:
                if f"{name}.".startswith(f"{library}.") and not may_enter(module, library):
                    found.append(f"{module} imports {library}")
    return found


def test_imports_point_down():
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("module", "line", "violation"),
    [
        ("seeding", "from crocodil.sampling.decode import decode", "seeding imports sampling.decode"),
        ("sampling/decode", "import crocodil.objectives", "sampling.decode imports objectives"),
        (
            "processes/masking",
            "from crocodil.processes import registers",
            "masking imports processes.registers",
        ),
        ("models/llada", "from crocodil.models.demasker import Demasker", "llada imports models.demasker"),
        (
            "sampling/algorithms",
            "def f():\n    from crocodil.checkpoints.llada import load_llada",
            "algorithms imports checkpoints",
        ),
        ("sampling/algorithms", "from transformers import Qwen3Model", "algorithms imports transformers"),
        ("objectives/priors", "import torch.distributed as dist", "objectives.priors imports torch.distributed"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, module, line, violation):
    for file in SOURCE.rglob("*.py"):
        copy = tmp_path / file.relative_to(SOURCE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())
    planted = tmp_path / f"{module}.py"
    planted.write_text(f"{planted.read_text()}\n{line}\n")
    assert [found for found in violations(tmp_path) if violation in found]


def test_no_module_hides_behind_a_name_that_says_nothing():
    names = {file.stem for file in SOURCE.rglob("*.py")}
    assert not names & {"utils", "util", "common", "helpers", "misc", "base", "core"}


def test_two_modules_stand_at_the_root():
    assert {file.stem for file in SOURCE.glob("*.py")} == {"__init__", "shapes", "seeding"}


def test_no_two_modules_share_a_name():
    names = Counter(file.stem for file in SOURCE.rglob("*.py") if not file.stem.startswith("__"))
    assert {name for name, count in names.items() if count > 1} == SAME_NAME


@pytest.mark.parametrize(
    "module",
    [
        "crocodil",
        "crocodil.text.tokenizer",
        "crocodil.corpus.build",
        "crocodil.processes.plan",
    ],
)
def test_neither_the_package_nor_its_corpus_nor_a_plan_loads_torch_or_transformers(module):
    check = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# What each of them would add to the seconds before the first text of a model that is not compiled.
SLOW_AND_NOT_NEEDED = {
    "transformers",
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "scipy",
    "sklearn",
    "matplotlib",
}
GENERATE_AND_COPY = f"""
import sys, crocodil.cli, crocodil.cli.display
from crocodil import Crocodil

pipe = Crocodil.from_pretrained({str(FIXTURE)!r})
texts = pipe.generate(2, length=8, calls=2, show_progress=False).texts
pipe.autoencode(texts, calls=2, cut=True, show_progress=False)
print(sorted({SLOW_AND_NOT_NEEDED} & set(sys.modules)))
"""


def test_neither_generating_nor_copying_loads_transformers_or_a_compiler():
    found = subprocess.run([sys.executable, "-c", GENERATE_AND_COPY], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_public_name_exists():
    assert all(getattr(crocodil, name) is not None for name in crocodil.__all__)
    assert dir(crocodil) == crocodil.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = crocodil.nonsense
