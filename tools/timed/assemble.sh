# assemble.sh: parts -> REPO/runs/pNN (train) and qNN (judge, first); move large tracked files away
set -e
cd REPO; rm -rf runs/p* runs/q*; mkdir -p runs
mkdir -p MOVED; git ls-files -z | xargs -0 -I{} find {} -size +900k 2>/dev/null | while read f; do mkdir -p MOVED/$(dirname $f); mv $f MOVED/$f; done
python3 - <<'P'
import shutil, json
from pathlib import Path
parts=Path('NEXT/parts'); runs=Path('REPO/runs'); LIMIT=57_000_000
def bins(prefix, files, first_extra=0):
    k, room = 0, LIMIT-first_extra; d=runs/f'{prefix}{k:02}'; d.mkdir()
    for f in files:
        n=f.stat().st_size
        if n>room: k+=1; room=LIMIT; d=runs/f'{prefix}{k:02}'; d.mkdir()
        shutil.copy(f, d/f.name); room-=n
    print(prefix, k+1)
order=[*sorted(parts.glob('libs*')), *sorted(parts.glob('start*' if json.load(open('NEXT/code_n/settings.json'))['start'] else 'trimmed*')), *(sorted(parts.glob('tea*')) if json.load(open('NEXT/code_n/settings.json')).get('body') else []), *sorted(parts.glob('corpus*'))]
bins('p', order, 1_000_000)
shutil.copytree('NEXT/code_n', runs/'p00/code')
qs=sorted(Path('CORPUS/q').glob('q.0*'))
for i,f in enumerate(qs): d=runs/f'q{i:02}'; d.mkdir(); shutil.copy(f,d/f.name)
bins('r', sorted(parts.glob('first*')))
P
du -sb runs/*; git ls-files -z | xargs -0 du -cb 2>/dev/null | tail -1
