"""How fast a corpus is built: megabytes a second stage by stage, and the gain of a second process.

    python benchmarks/corpus.py [FOLDER OF PYTHON FILES]

The default folder is the installed torch package. Ratios are measured side by side in one run.
"""

import importlib.util
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from crocodil.corpus.build import ensure_tokenizer, finish, run_harvest, write_shards
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.selection import catalogue, select
from crocodil.corpus.shards import Corpus
from crocodil.corpus.sources import Files


def build_in_stages(folder: Path, out: Path, num_processes: int) -> tuple[dict[str, float], Corpus]:
    """The seconds of each stage of a build, and the corpus."""
    recipe = Recipe(source=Files(folder, files_per_unit=100), permissive_only=False, shard_chars=3_000_000)
    seconds, started_at = {}, time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal started_at
        now = time.perf_counter()
        seconds[stage], started_at = now - started_at, now

    directories = run_harvest(recipe, out / "work", num_processes=num_processes)
    lap("harvest")
    documents = catalogue(directories, out / "work" / "signatures.bin")
    selection = select(documents, recipe)
    lap("select")
    tokenizer = ensure_tokenizer(recipe, out, directories, documents, selection)
    lap("train the tokenizer")
    write_shards(recipe, out, directories, documents, selection, num_processes=num_processes)
    lap("tokenize")
    corpus = finish(recipe, out, directories, documents, selection, tokenizer)
    lap("check for leaks")
    return seconds, corpus


def main() -> None:
    torch_spec = importlib.util.find_spec("torch")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(torch_spec.origin).parent
    seconds, descriptions = {}, {}
    for num_processes in (1, 2):
        with tempfile.TemporaryDirectory() as scratch:
            seconds[num_processes], corpus = build_in_stages(folder, Path(scratch), num_processes)
            descriptions[num_processes] = corpus.description
    counts = descriptions[1]["counts"]
    megabytes = counts["read"][1] / 1e6
    print(f"\n{folder.name}: {counts['read'][0]:,} files, {megabytes:.1f} MB\n")
    print("| stage | MB/s, 1 process | speed-up of 2 |\n|---|---|---|")
    for stage, alone in [*seconds[1].items(), ("whole build", sum(seconds[1].values()))]:
        both = seconds[2].get(stage, sum(seconds[2].values()))
        print(f"| {stage} | {megabytes / alone:.1f} | {alone / both:.2f} |")
    inside = sorted(counts["seconds"].items(), key=lambda step: -step[1])
    peak = {
        "main process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "largest worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
    }
    print(
        json.dumps(
            {
                "slowest_stage": max(seconds[1], key=seconds[1].get),
                "slowest_within_harvest": inside[0][0],
                "its_mb_per_s": round(megabytes / inside[0][1], 1),
                "same_bytes": descriptions[1]["sha256"] == descriptions[2]["sha256"],
                "peak_memory_mib": peak,
            }
        )
    )


if __name__ == "__main__":
    main()
