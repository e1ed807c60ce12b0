# assemble.sh: parts -> REPO/runs/pNN (57 MB each, the first with the code) and qNN (the judge); large tracked files are moved to KEEP/moved. The order is that of settings.json.
set -e
cd $REPO; N=$KEEP/quarter; rm -rf runs/p* runs/q*; mkdir -p runs $KEEP/moved
git rev-parse --short HEAD > $N/commit
git ls-files -z | xargs -0 -I{} find {} -size +900k 2>/dev/null | while read f; do mkdir -p $KEEP/moved/$(dirname $f); mv $f $KEEP/moved/$f; done
python3 - <<'P'
import json, os, shutil
from pathlib import Path
repo, keep = Path(os.environ['REPO']), Path(os.environ['KEEP']); runs, parts = repo / 'runs', keep / 'quarter/parts'
wanted = json.loads((keep / 'quarter/settings.json').read_text())['join']
k, room, d = 0, 56_000_000, runs / 'p00'; d.mkdir(); (d / 'code').mkdir()
for f in (keep / 'quarter').iterdir():
    if f.is_file(): shutil.copy(f, d / 'code')
for what in ['libs', *wanted]:
    for f in sorted(parts.glob(f'{what}.*')):
        if f.stat().st_size > room: k += 1; room = 57_000_000; d = runs / f'p{k:02}'; d.mkdir()
        shutil.copy(f, d); room -= f.stat().st_size
for i, f in enumerate(sorted((keep / 'q').glob('q.0*'))): (runs / f'q{i:02}').mkdir(); shutil.copy(f, runs / f'q{i:02}')
P
du -sb runs/*
