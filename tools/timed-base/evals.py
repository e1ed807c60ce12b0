"""evals.py K N: evaluate the settings K, K+N, ... on validation programs; one line each into res/rows.txt and res/evals.jsonl."""
import json, os, sys, time, fcntl, torch
from dataclasses import replace
from pathlib import Path
from crocodil.corpus.shards import Corpus
from crocodil.cli.reproduce import _evaluator
from crocodil.pipeline import Crocodil, Method
from crocodil.reproduce.held_out import HeldOut
from crocodil.reproduce.context import with_base
from crocodil.reproduce.protocol import FULL
from crocodil.text.tokenizer import Tokenizer
from crocodil.seeding import Streams
k, n, part = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]; W = Path(os.environ.get('W', '/tmp/w'))
S = json.loads((W / 'code/settings.json').read_text()); T0 = int((W / 't0').read_text())
corpus = Corpus(W / 'corpus'); C = S['samples']
pipes = {}
candidates = [c for c in S['candidates'] if (c.get('who', 'start') == part)]
(W / 'res').mkdir(exist_ok=True)
ev = _evaluator(corpus, (S['judge'],), None, FULL, None)
tok = Tokenizer.load(W / 'corpus/tokenizer.json')
real = {}
def reference(length):
    if length not in real:
        texts = HeldOut(corpus, tok, length).texts('valid', 2 * C); real[length] = (ev.reference(texts[:C]), texts[C:], texts[:C])
    return real[length]
def log(row):
    with open(W / 'res/evals.jsonl', 'a') as f, open(W / 'res/rows.txt', 'a') as g:
        fcntl.flock(f, fcntl.LOCK_EX); f.write(json.dumps(row) + '\n')
        g.write(f"{row['name']:44} flops {row.get('nfe', 0):5.1f} ppl {row['gen_ppl']:6.2f} ent {row['entropy']:.2f} d2 {row['distinct_2']:.3f} parse {100*row['parse_share']:5.1f} mauve {row['mauve']:.3f}+-{row['mauve_spread']:.3f} pooled {row['mauve_pooled']:.3f} tokens {row['tokens']:.0f} {row['s']:.0f}s t={time.time()-T0:.0f}\n")
def pipe_of(who):
    """The model in the folder of this name."""
    if who != 'head': return Crocodil.from_pretrained(W / who)
    from crocodil.checkpoints.format import load_model
    pipe = Crocodil.from_pretrained(W / 'start')
    head = load_model(W / 'run-head/head/model/causal_head').to(pipe.device, next(pipe.demasker.parameters()).dtype)
    return replace(pipe, causal_head=head)
for i, c in enumerate(candidates):
    if i % n != k: continue
    t = time.time(); length = c.get('length', 256); nfe = 0.0
    try:
        if c['kind'] == 'real':
            ref, other, _ = reference(length); row = ev.evaluate_real(ref, other); texts = real[length][2]
        else:
            who = c.get('who', 'base')
            if who not in pipes: pipes[who] = pipe_of(who)
            pipe = pipes[who]
            if c['kind'] == 'bank':
                bank = torch.load(W / 'banks' / c['bank'], weights_only=True).to(next(pipe.demasker.parameters()).device).float()[:C]
                made = pipe.decode(bank, length=length, show_progress=False, **c['knobs'])
            elif c['kind'] == 'oracle':
                regs = pipe.encode(reference(length)[1], cut=True)
                bank = regs.bank[:, :c['registers']]
                noise = Streams.of('eval', samples=range(len(bank)), device=bank.device).normal(*bank.shape[1:]).to(bank.dtype)
                made = pipe.decode(bank + c['noise'] * noise, length=length, show_progress=False, **c['knobs'])
            else:
                made = pipe.generate(C, method=c['kind'], length=length, seed=1, show_progress=False, **c['knobs'])
            texts = list(made.texts); nfe = float(getattr(made, 'flop_nfe', 0) or 0)
            ref = reference(length)[0]; row = ev.evaluate(texts, ref)
            (W / 'res' / f"texts-{part}-{i:02}.json").write_text(json.dumps(texts[:60]))
        log({'i': i, **c, **{a: b for a, b in row.items() if isinstance(b, (int, float)) or b is None}, 'nfe': nfe, 'tokens': sum(map(len, tok.encode_all(texts))) / len(texts), 's': time.time() - t})
    except Exception as e:
        import traceback; traceback.print_exc()
        open(W / 'res/rows.txt', 'a').write(f"{c['name']}: {e!r}\n")
print('evals done')
