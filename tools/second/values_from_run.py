"""Write `commands`, `choices`, `experiments` and `minutes` of values.json from the small files of a run.

    python values_from_run.py SMALL        # SMALL: the folder `s` of small-*.tgz (drive.log, chosen.json, res/, run/)

Read what it prints: it cannot know whether chosen.json was written by hand, nor what a second try of a stage changed.
"""

import json
import re
import sys
from pathlib import Path

small, here = Path(sys.argv[1]), Path(__file__).parent
settings = json.loads((here / "code" / "settings.json").read_text())
log = (small / "drive.log").read_text()
chosen = json.loads((small / "chosen.json").read_text())
KEEPS = ("save_every", "evaluate_every")  # change nothing in the weights


def flags(changes):
    return " ".join(f"--set {change}" for change in changes if not any(name in change for name in KEEPS))


def wrapped(command):
    lines, line = [], ""
    for word in re.split(r" (?=--)", command):
        if len(line) + len(word) > 108:
            lines.append(line)
            line = "    " + word
        else:
            line = f"{line} {word}" if line else word
    return " \\\n".join([*lines, line])


commands, total = ["same=\"--preset small --data corpus-own --out run " + flags(settings["set"]["all"]) + "\""], 0.0
for stage in ("base", "guided", "conditional"):
    starts = [int(t) for t in re.findall(rf"\[(\d+)\] start [^\n]* train {stage} ", log)]
    if len(starts) != 1:
        print(f"LOOK: stage {stage} was started {len(starts)} times")
    minutes = (settings["until"][stage] - starts[-1] - settings["tail"][stage]) / 60
    total += minutes
    start = settings["causal"] + " " if stage == "base" else ""
    commands.append(f"crocodil train {stage} $same {start}{flags(settings['set'][stage])} --minutes {minutes:.1f}")
bits = "--bits demasker=5,encoder=4,conditional=4 --without base --license apache-2.0"
commands.append(f"crocodil export run --data corpus-own --out model {bits} {chosen['flags']}")
rows = [json.loads(line) for line in (small / "res" / "evals.jsonl").read_text().splitlines()]
tried = [row for row in rows if row.get("choice")]
knobs = {name: sorted({str(row["knobs"][name]) for row in tried}) for name in ("register_noise", "temperature", "prior_steps", "pace")}
varied = ", ".join(f"`{name}` {' or '.join(values)}" for name, values in knobs.items() if len(values) > 1)
choices = (
    f"of {len(tried)} settings of ConThenDisc at 256 tokens and 16 calls ({varied}; not all combinations), with {settings['samples']:,} samples "
    "and the same judge, a rule that was written down before took the one with the lowest Gen-PPL among those whose "
    "MAUVE is within 0.05, or within its spread, of the best"
)
print("chosen:", chosen["name"], "| tried:", [row["name"].strip() for row in tried])
file = here / "values.json"
values = json.loads(file.read_text())
values |= {"commands": "\n".join(map(wrapped, commands)), "choices": choices, "experiments": f"{settings['experiments']} cpu-seconds"}
values["minutes"] = values["minutes"] or f"{total:.0f}"
file.write_text(json.dumps(values, indent=2) + "\n")
print(values["commands"], values["choices"], values["minutes"], sep="\n")
