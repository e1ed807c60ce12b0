"""Measure `cpu-seconds` of the built-in model on this machine, for the rows in results/second.

    python cpu_seconds.py REPOSITORY        # after the model and the rows are in place; an idle machine, about 4 minutes

`reproduce cpu-seconds --device cpu` cannot do this: its rows have other conditions (cpu, float32) than those of the GPU, so
no page would show them, and it judges 2,000 real programs on the CPU first.  Here the row has the conditions of the
GPU rows and says which machine it was measured on, as the rows of the first model do.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

repository = Path(sys.argv[1])
sys.path.insert(0, str(repository / "src"))
import torch  # noqa: E402

from crocodil import Crocodil  # noqa: E402
from crocodil.pipeline.folder import NETWORKS  # noqa: E402
from crocodil.reproduce.context import parts  # noqa: E402
from crocodil.reproduce.experiments.timing import compute_cpu_seconds  # noqa: E402
from crocodil.reproduce.protocol import DEFAULTS  # noqa: E402
from crocodil.reproduce.store import Store  # noqa: E402

out = repository / "results" / "second"
conditions = json.loads((out / "conditions.json").read_text())[0]
pipe = Crocodil.from_pretrained(device="cpu", dtype=getattr(torch, conditions["dtype"])).at_length(conditions["length"])
assert parts(pipe) == conditions["model"], ("the rows are of another model", parts(pipe), conditions["model"])
pipe = replace(pipe, **{name: network.float() for name in NETWORKS if (network := getattr(pipe, name)) is not None})
context = SimpleNamespace(pipe=pipe, store=Store(out, conditions), protocol=DEFAULTS, seed=conditions["seed"])
for row in compute_cpu_seconds(context):
    print(row["method"], row["calls"], "calls", round(row["cpu_seconds"], 1), "s,", row["threads"], "threads of", row["machine"])
