"""settings.json of the run of a base without drafts, and rows of it; `toy` for a trial on a CPU."""
import json, sys
TOY = 'toy' in sys.argv
cand = []
def base(rule, t, calls, length=256, **more):
    knobs = dict(rule=rule, temperature=t, calls=calls, **more)
    cand.append(dict(kind='base', who='base', length=length, name=f"base {length} {rule} T {t} calls {calls} {more or ''}", knobs=knobs))
def start(method, calls=16, length=256, **more):
    cand.append(dict(kind=method, who='start', length=length, name=f"{method[3:7]} {length} calls {calls} {more or ''}", knobs=dict(calls=calls, **more)))
R = dict(pace='text', corrector=0.25)
if TOY:
    base('random', 0.75, 4, 64); base('revise', 1.0, 4, 64, **R); start('conthendisc', 4, 64, crop=4)
else:
    for calls in (4, 6, 8, 10, 12): start('conthendisc', calls, corrector=0.0 if calls < 8 else 0.25)
    start('conthendisc', corrector=0.375); start('conthendisc', temperature=0.3, register_noise=0.7); start('conthendisc', curve=1.25); start('conthendisc', curve=0.8)
    start('conthendisc', num_registers=12); start('conthendisc', num_registers=6, register_noise=0.35); start('conthendisc', crop=8)
    start('conwithindisc', refresh_at=(0.25,)); start('conwithindisc', refresh_at=(0.75,)); start('conwithindisc', refresh_from=0.5, refresh_steps=2)
    start('conwithindisc', 8); start('conthendisc', 8, 512); start('conthendisc', 12, 512)
    base('random', 0.9, 128); base('random', 0.9, 128, top_p=0.9); base('random', 0.85, 128); base('random', 0.9, 64); base('random', 1.0, 128, top_p=0.9)
    base('random', 0.9, 128, crop=16, pace='text'); base('random', 0.9, 128, crop=16); base('random', 0.9, 128, pace='text')
    base('revise', 1.0, 128, **R); base('remask-confidence', 1.0, 128, corrector=0.25); base('random', 0.9, 256); base('random', 0.9, 32)
    base('noisy-confidence', 1.0, 128); base('random', 0.8, 128); base('confidence', 1.0, 128, block_size=32); base('random', 0.9, 128, 512)
S = dict(preset='builtin', judge='qwen2.5-coder-0.5b', judge_parts=[f'q.0{i}' for i in range(9)], judge_option='--judge qwen2.5-coder-0.5b', samples=500, early=3, late=3, least=0.05, tail=25, tests=True,
    until=dict(early=200, base=1330, rows=1640), device='', protocol='defaults', length=256, candidates=cand,
    set=['base_draft_rate=0', 'base_loop.num_accumulated=1', 'base_loop.learning_rate=1.4e-3', 'base_loop.warmup_steps=100', 'base_loop.decay_share=0.3', 'base_loop.average_decay=0.997', 'base_loop.save_every=100000', 'base_loop.evaluate_every=100000'])
if TOY: S |= dict(preset='tiny', judge_parts=[], samples=8, early=1, late=1, tail=1, least=0.05, tests=False, until=dict(early=60, base=120, rows=400), device='--device cpu', length=64, protocol='tiny', set=['base_draft_rate=0', 'base_loop.decay_share=0.5', 'base_loop.warmup_steps=0'])
json.dump(S, open('settings.json', 'w'), indent=1); print(len(cand), 'settings')
