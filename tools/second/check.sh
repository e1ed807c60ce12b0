#!/bin/bash
# bash check.sh REPOSITORY: what would still be wrong after the swap. Seconds; no model is loaded except by the last line.
cd "$1" || exit 1
echo "--- marks left"; grep -rn "TODO\[" README.md CHANGELOG.md docs src/crocodil/builtin/README.md
echo "--- paths of a machine in results/second"; grep -rnE "/work|/root|/home|/tmp|/mnt" results/second --include=*.json --include=*.jsonl | cut -c1-160
echo "--- size of the built-in folder (at most 100,000,000)"; find src/crocodil/builtin -type f -printf '%s\n' | awk '{s+=$1} END {print s}'
echo "--- folders (no base, no prior)"; ls src/crocodil/builtin
echo "--- conditions of the rows"; grep -hE '"(setting|judge|device|dtype|length|test_corpus|protocol|corpus)"' results/second/conditions.json | sort | uniq -c
echo "--- stale sentences about the first model on pages of the built-in one"
grep -nE "79 M|8,192|\b6 registers|never trained on|cannot be rebuilt|results/first|smollm2-135m" README.md src/crocodil/builtin/README.md docs/results.md | grep -v "first-model\|first model\|for .small."
echo "--- memory to fine-tune (README and docs/quickstart.md must have it, at batch 32)"
PYTHONPATH=src:tests REPO/.venv/bin/python - <<'P'
from dataclasses import replace
from crocodil.checkpoints.format import model_config
from crocodil.pipeline.settings import BUILTIN, model_folder, read_settings, settings_file
from crocodil.presets.changes import with_changes
from crocodil.presets.runs import assumed_corpus, preset
from crocodil.training.estimate import estimates
from crocodil.training.run_config import Pretrained
changes = ("base_loop.num_accumulated=1", "guided_loop.num_accumulated=1", "guided_loop.batch_size=32")
run = with_changes(preset("small", assumed_corpus("small")[0], Pretrained()), changes)
networks = {name: model_config(model_folder(BUILTIN) / name) for name in ("demasker", "encoder", "conditional")}
run = replace(run, prior=replace(run.prior, num_registers=networks["conditional"].num_registers),
              lengths=read_settings(settings_file(BUILTIN)).lengths, **networks)
print(next(f"{part.gigabytes:.1f} GB" for part in estimates(run) if part.stage == "guided"))
settings = read_settings(settings_file(BUILTIN))
print(settings)
print("denoiser", networks["conditional"])
P
