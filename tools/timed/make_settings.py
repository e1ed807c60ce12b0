"""settings.json of the run of a base, rows of the built-in weights and the causal head; `toy` for a trial on a CPU."""
import json, sys
TOY = 'toy' in sys.argv
cand = [dict(kind='real', name='real programs', who='start')]
def base(rule, t, calls, length=256, **more):
    knobs = dict(rule=rule, temperature=t, calls=calls, **more)
    cand.append(dict(kind='base', who='base', length=length, name=f"base {length} {rule} T {t} calls {calls} {more or ''}", knobs=knobs))
def start(method, calls=16, length=256, **more):
    cand.append(dict(kind=method, who='start', length=length, name=f"{method[3:7]} {length} calls {calls} {more or ''}", knobs=dict(calls=calls, **more)))
R = dict(pace='text', corrector=0.25)
if TOY:
    base('random', 0.75, 4, 64); start('conthendisc', 4, 64, crop=4)
else:
    E = dict(num_registers=8)
    start('conthendisc', crop=16); start('conthendisc', **E, register_noise=0.7, crop=16); start('conwithindisc', crop=16)
    start('conwithindisc', **E, register_noise=0.7, crop=16); start('conthendisc', **E, register_noise=0.5, crop=16); start('conthendisc', **E, register_noise=0.7, crop=32)
    start('conthendisc', 32, 512, **E, register_noise=0.7); start('conthendisc', 32, 512, **E, register_noise=0.7, crop=16); start('conthendisc', 32, 512, crop=16)
    start('conthendisc', 21, **E, register_noise=0.7, crop=16); start('conthendisc', 32, **E, register_noise=0.7, crop=16); start('conthendisc', **E, register_noise=0.5)
    base('random', 0.75, 256); base('revise', 0.75, 128, **R); base('noisy-confidence', 0.75, 128)
    base('random', 0.75, 64); base('revise', 1.0, 128, **R); base('random', 0.75, 16); base('random', 0.5, 128); base('random', 1.0, 128); base('remask-confidence', 0.75, 64); base('revise', 0.75, 16, **R); base('random', 0.75, 128, 512)
S = dict(preset='builtin', judge='qwen2.5-coder-0.5b', judge_parts=[f'q.0{i}' for i in range(9)], judge_option='--judge qwen2.5-coder-0.5b', samples=1000, num_evals=3, num_early=1, least=0.05, tail=25, tests=True, chain=True, chain_seconds=240,
    until=dict(base=1360, rows=1640), device='', protocol='defaults', length=256, candidates=cand,
    set=['base_draft_rate=0.5', 'base_loop.num_accumulated=1', 'base_loop.learning_rate=1.4e-3', 'base_loop.warmup_steps=100', 'base_loop.decay_share=0.3', 'base_loop.average_decay=0.997', 'base_loop.save_every=100000', 'base_loop.evaluate_every=100000'])
if TOY: S |= dict(preset='tiny', judge_parts=[], samples=8, num_evals=1, num_early=1, tail=1, least=0.05, tests=False, chain=False, until=dict(base=60, rows=400), device='--device cpu', length=64, protocol='tiny', set=['base_loop.decay_share=0.5', 'base_loop.warmup_steps=0'])
json.dump(S, open('settings.json', 'w'), indent=1); print(len(cand), 'settings')
