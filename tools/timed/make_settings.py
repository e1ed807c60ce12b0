"""settings.json of the run of a base; `toy` for a trial on a CPU."""
import json, sys
TOY = 'toy' in sys.argv
cand = [dict(kind='real', name='real programs')]
def base(rule, t, calls, length=256, **more):
    knobs = dict(rule=rule, temperature=t, calls=calls, **more)
    cand.append(dict(kind='base', who='base', length=length, name=f"base {length} {rule} T {t} calls {calls} {more or ''}", knobs=knobs))
R = dict(pace='text', corrector=0.25)
if TOY: base('random', 0.75, 4, 64)
else:
    for calls in (256, 64, 16):
        base('random', 0.75, calls); base('random', 1.0, calls); base('revise', 0.0, calls, **R); base('revise', 0.75, calls, **R); base('noisy-confidence', 0.75, calls)
    base('revise', 1.0, 256, **R); base('remask-confidence', 0.75, 64); base('random', 0.75, 128); base('random', 0.75, 512, 512); base('revise', 0.75, 512, 512, **R)
    for n, k in ((0.7, 8), (0.8, 8), (0.9, 8), (1.0, 12)):
        cand.append(dict(kind='conthendisc', who='start', length=256, name=f'Then {k} registers noise {n}', knobs=dict(calls=16, num_registers=k, register_noise=n)))
        cand.append(dict(kind='conwithindisc', who='start', length=256, name=f'Within {k} registers noise {n}', knobs=dict(calls=16, num_registers=k, register_noise=n)))
S = dict(preset='builtin', judge='qwen2.5-coder-0.5b', judge_parts=[f'q.0{i}' for i in range(9)], judge_option='--judge qwen2.5-coder-0.5b', samples=1000, num_evals=3, least=0.05, tail=25,
    until=dict(base=1080, rows=1700), device='', protocol='defaults', length=256, candidates=cand,
    set=['base_draft_rate=0.5', 'base_loop.num_accumulated=1', 'base_loop.learning_rate=1.4e-3', 'base_loop.warmup_steps=100', 'base_loop.decay_share=0.5', 'base_loop.average_decay=0.997', 'base_loop.save_every=100000', 'base_loop.evaluate_every=100000'])
if TOY: S |= dict(preset='tiny', judge=None, judge_parts=[], judge_option='', samples=8, num_evals=1, tail=1, least=0.05, until=dict(base=60, rows=400), device='--device cpu', length=64, protocol='tiny', set=['base_loop.decay_share=0.5', 'base_loop.warmup_steps=0'])
json.dump(S, open('settings.json', 'w'), indent=1); print(len(cand), 'settings')
