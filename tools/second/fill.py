"""Fill the marks TODO[name] of README, CHANGELOG, model card and docs; wrap the paragraphs that change.

    python fill.py REPOSITORY EXPORTED      # EXPORTED: the folder that `crocodil export` wrote, with its README.md

From the built-in model in REPOSITORY: parameters, size.  From EXPORTED/README.md: stages, defaults, documents, tokens.
From NEXT/outputs: the three outputs of README.  All others from NEXT/values.json (empty ones stay marked).
"""

import json
import re
import sys
import textwrap
from pathlib import Path

repository, exported = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(repository / "src"))
HERE = Path(__file__).parent
FILES = ["README.md", "CHANGELOG.md", "src/crocodil/builtin/README.md", "docs/results.md", "docs/corpus.md"]


def from_model() -> dict[str, str]:
    import torch

    from crocodil.checkpoints.format import load_model

    folder = repository / "src" / "crocodil" / "builtin"
    counts = {}
    for name in ("demasker", "encoder", "conditional"):
        network = load_model(folder / name, dtype=torch.bfloat16)
        counts[name] = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    size = sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e6
    return {
        "parameters": f"{sum(counts.values()):.0f}",
        "size": f"{size:.0f}",
        **{f"{name} parameters": f"{count:.1f}" for name, count in counts.items()},
    }


def from_card(card: str) -> dict[str, str]:
    """What `crocodil export` wrote into its own card."""
    found = {}
    if table := re.search(r"\| stage \|.*?(?=\n\n)", card, re.DOTALL):
        found["stages"] = table[0]
    if defaults := re.search(r"By default it fills .*?\.\n", card, re.DOTALL):
        found["defaults"] = " ".join(defaults[0].split())
    if data := re.search(r"Data: ([\d,]+) documents, ([\d,]+) tokens", card):
        found["documents"], found["tokens"] = data[1], data[2]
    return found


def outputs() -> dict[str, str]:
    files = {name: HERE / "outputs" / f"{name}.block.txt" for name in ("autoencode", "interpolate", "generate")}
    return {f"{name} output": file.read_text().rstrip("\n") for name, file in files.items() if file.exists()}


def wrapped(paragraph: str) -> str:
    """Wrap prose and bullets at 120 columns; leave tables, code and comments."""
    first = paragraph.lstrip()
    if first.startswith(("|", "`" * 3, "<", "#")):
        return paragraph
    parts = re.split(r"\n(?=- )", paragraph)
    return "\n".join(
        textwrap.fill(
            " ".join(part.split()), 120, subsequent_indent="  " if part.startswith("- ") else "",
            break_long_words=False, break_on_hyphens=False,
        )
        for part in parts
    )


def main() -> None:
    own = {name: text for name, text in json.loads((HERE / "values.json").read_text()).items() if text}
    values = {**from_model(), **from_card((exported / "README.md").read_text()), **outputs(), **own}
    print({name: text if len(text) < 60 else text[:57] + "..." for name, text in values.items()})
    for name in FILES:
        file = repository / name
        parts = file.read_text().split("\n\n")
        for number, part in enumerate(parts):
            new = re.sub(r"TODO\[([^\]]+)\]", lambda found: values.get(found[1], found[0]), part)
            if new != part:
                is_code = "\n\n".join(parts[:number]).count("```") % 2 or "```" in part
                parts[number] = new if is_code or name == "CHANGELOG.md" else wrapped(new)
        file.write_text("\n\n".join(parts))
        for left in re.findall(r"TODO\[[^\]]+\]", file.read_text()):
            print(f"left in {name}: {left}")


main()
