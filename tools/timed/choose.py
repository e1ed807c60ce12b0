"""The rule, fixed before the run, over ConThenDisc at 16 calls and 256 tokens: the most aims reached on validation programs; then the highest MAUVE."""
import json
from pathlib import Path
W = Path('/tmp/w')
f = W / 'res/evals.jsonl'
rows = [json.loads(l) for l in open(f)] if f.exists() else []
rows = [r for r in rows if r.get('choice')]
S = json.loads((W / 'code/settings.json').read_text())
REAL = dict(ppl=7.0, entropy=3.97, distinct_2=0.313, mauve=0.964)  # validation programs, the log of 2026-11-18
def aims(r):
    return sum([r['parse_share'] >= 0.40, r['distinct_2'] >= 0.8 * REAL['distinct_2'], abs(r['entropy'] - REAL['entropy']) <= 0.25, r['mauve'] >= 0.75 * REAL['mauve'], r['gen_ppl'] <= 1.3 * REAL['ppl']])
if not rows: out = {'flags': S['export'], 'name': 'default'}
else:
    r = max(rows, key=lambda r: (aims(r), r['mauve'])); out = {'flags': r['choice'], 'name': r['name'], 'aims': aims(r)}
(W / 'chosen.json').write_text(json.dumps(out))
