"""The rule of the protocol, over ConThenDisc at 16 calls: highest MAUVE; within its spread or 0.05 the lowest Gen-PPL."""
import json
from pathlib import Path
W = Path('/tmp/w')
f = W / 'res/evals.jsonl'
rows = [json.loads(l) for l in open(f)] if f.exists() else []
rows = [r for r in rows if r.get('choice')]
S = json.loads((W / 'code/settings.json').read_text())
if not rows: out = {'flags': S['export'], 'name': 'default'}
else:
    best = max(rows, key=lambda r: r['mauve'])
    near = [r for r in rows if r['mauve'] >= best['mauve'] - max(best['mauve_spread'], 0.05)]
    r = min(near, key=lambda r: r['gen_ppl']); out = {'flags': r['choice'], 'name': r['name']}
(W / 'chosen.json').write_text(json.dumps(out))
