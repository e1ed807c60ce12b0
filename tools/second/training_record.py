"""Write results/second/training/run.json from a training run: settings of every stage, without paths of a machine.

    python training_record.py RUN REPOSITORY

run.json of a run has the settings of the stage that started last; `recorded_run` puts those of each stage's own
stage.json into it, so RUN must have RUN/STAGE/stage.json.  Paths are cut to their last part.
"""

import json
import sys
from pathlib import Path

run, repository = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(repository / "src"))
from crocodil.training.history import history, recorded_run  # noqa: E402


def cleaned(value):
    if isinstance(value, dict):
        return {name: cleaned(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [cleaned(inner) for inner in value]
    if isinstance(value, str) and value.startswith(("/", "~")):
        print(f"path cut: {value} -> {Path(value).name}")
        return Path(value).name
    return value


values = cleaned(recorded_run(run))
target = repository / "results" / "second" / "training" / "run.json"
target.parent.mkdir(parents=True, exist_ok=True)
target.write_text(json.dumps(values, indent=2) + "\n")
print(target, "| causal:", values.get("causal"))
print("lengths", values["lengths"], "| prefix_lengths", values["guided_objective"]["prefix_lengths"])
for part in history(run, ("base", "guided", "conditional")):
    print(part)
