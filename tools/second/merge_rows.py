"""Put rows that were computed in several folders (one per length) into results/second.

    python merge_rows.py REPOSITORY FOLDER...        # e.g. res/rows256 res/rows512 res/cpu2

Every folder has conditions.json.  The first folder counts: a folder measured under other conditions (another device,
dtype, judge ...) is left out and named.  Of an experiment and length that two folders have, the first is taken.
"""

import json
import sys
from pathlib import Path

repository, *folders = map(Path, sys.argv[1:])
sys.path.insert(0, str(repository / "src"))
from crocodil.reproduce.store import read_rows, write_rows  # noqa: E402

out = repository / "results" / "second"
conditions, rows, seen = {}, {}, {}


def common(one):
    return {name: value for name, value in one.items() if name != "length"}


for folder in folders:
    of_folder = json.loads((folder / "conditions.json").read_text())
    first = next(iter(conditions.values()), of_folder[0])
    if any(common(one) != common(first) for one in of_folder):
        differ = {name: (first[name], one[name]) for one in of_folder for name in first if name != "length" and one.get(name) != first[name]}
        print(f"LEFT OUT {folder}: other conditions: {differ}")
        continue
    for one in of_folder:
        conditions.setdefault(one["length"], one)
    for file in sorted(folder.glob("*.jsonl")):
        for row in read_rows(file):
            if seen.setdefault((file.name, row["length"]), folder) == folder:
                rows.setdefault(file.name, []).append(row)
for name, found in rows.items():
    write_rows(out / name, sorted(found, key=lambda row: row["length"]))
    print(f"{name:24} {len(found)} rows, lengths {sorted({row['length'] for row in found})}")
(out / "conditions.json").write_text(json.dumps([conditions[length] for length in sorted(conditions)], indent=2) + "\n")
