"""Run every command of README and docs whose output of the built-in model is shown; print the new blocks.

    python outputs.py REPOSITORY [autoencode] [interpolate] [generate] [seeds] [prompts] [demo]

Without names: autoencode, interpolate, generate, seeds.  Full outputs and README blocks are written to
NEXT/outputs/ (NAME.txt, NAME.block.txt); fill.py puts the blocks into README.  10-25 s per text on this machine.
`seeds` prints the samples of seeds 0 to 4 at 128 tokens, to choose the seed of docs/assets/reveal.svg.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

OUT = Path(__file__).parent / "outputs"
PYTHON = "REPO/.venv/bin/python"
README = {  # as in README: tests/test_builtin.py runs the same words
    "autoencode": "autoencode examples/greeting.py --calls 16",
    "interpolate": "interpolate examples/mean.py examples/stack.py --steps 3 --calls 16",
    "generate": "generate --seed 1 --length 128 --calls 16",
}
LINE = "-" * 40


def run(repository: Path, words: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    start = time.monotonic()
    command = [PYTHON, "-m", "crocodil.cli", *words, "--device", "cpu"]
    made = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    print(f"[{time.monotonic() - start:.0f} s] crocodil {' '.join(words)}\n{made.stderr.strip()}", file=sys.stderr)
    made.check_returncode()
    return made.stdout


def first_lines(text: str, count: int) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[:count]) + ("...\n" if len(lines) > count else "")


def block(name: str, output: str) -> str:
    if name == "interpolate":
        parts = output.split(LINE + "\n")
        return (LINE + "\n").join(first_lines(part, 2) for part in parts)
    if name == "autoencode":
        lines = output.splitlines()
        changed = [number for number, line in enumerate(lines) if "[-" in line or "{+" in line]
        last = max([number for number in changed if number < 10], default=3)
        return first_lines(output, max(4, last + 1))
    return first_lines(output, 4)


def readme(repository: Path, name: str) -> None:
    output = run(repository, README[name].split())
    shown = block(name, output)
    rest = output
    for part in shown.split("...\n"):  # what tests/test_builtin.py asserts
        assert part in rest, part
        rest = rest.partition(part)[2] if part else rest
    (OUT / f"{name}.txt").write_text(output)
    (OUT / f"{name}.block.txt").write_text(shown)
    print(f"===== {name}: whole output\n{output}\n===== {name}: block for README\n{shown}")


def seeds(repository: Path) -> None:
    """Number of calls until the sample is finished, whether it parses, and the sample."""
    script = (
        "import ast, json\n"
        "from crocodil import Crocodil\n"
        "pipe = Crocodil.from_pretrained(device='cpu')\n"
        "for seed in range(5):\n"
        "    made = pipe.generate(1, method='conwithindisc', length=128, calls=16, seed=seed, show_progress=False)\n"
        "    try:\n        ast.parse(made.texts[0]); parses = True\n    except SyntaxError:\n        parses = False\n"
        "    print(json.dumps({'seed': seed, 'calls': made.cost.demasker_calls, 'parses': parses,"
        " 'tokens': len(pipe.tokenizer.encode(made.texts[0])), 'text': made.texts[0]}), flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    made = subprocess.run([PYTHON, "-c", script], cwd=repository, env=environment, stdout=subprocess.PIPE, text=True)
    made.check_returncode()
    (OUT / "seeds.jsonl").write_text(made.stdout)
    for row in map(json.loads, made.stdout.splitlines()):
        print(f"===== seed {row['seed']}: {row['calls']} calls, {row['tokens']} tokens, parses {row['parses']}")
        print(row["text"])
    print("reveal.svg needs 16 calls (17 frames); then: python examples/reveal.py --seed S --out docs/assets/reveal.svg")


def prompts(repository: Path) -> None:
    words = ["generate", "--count", "16", "--seed", "0", "--prefix", "def read(path):\n", "--format", "jsonl"]
    output = run(repository, words)
    target = repository / "results" / "second" / "prompts.jsonl"
    target.write_text(output)
    print(f"{target}: {len(output.splitlines())} rows")


def demo(repository: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    subprocess.run([PYTHON, "examples/demo.py"], cwd=repository, env=environment, check=True)


def main() -> None:
    repository, *names = sys.argv[1:]
    OUT.mkdir(exist_ok=True)
    others = {"seeds": seeds, "prompts": prompts, "demo": demo}
    for name in names or [*README, "seeds"]:
        others[name](Path(repository)) if name in others else readme(Path(repository), name)


main()
