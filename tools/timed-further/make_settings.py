"""make_settings.py [toy]"""
import json, os, sys
TOY = 'toy' in sys.argv
P, D = ('tiny', '--device cpu') if TOY else ('builtin', '')
lengths = '--set lengths=[64]' if TOY else '--set lengths=[256,256,256,512,512,1024]'
how = '--set guided_loop.decay_share=0.5 --set guided_loop.warmup_steps=0' if TOY else ' '.join('--set ' + x for x in (
    'guided_loop.num_accumulated=4', 'guided_loop.learning_rate=1e-3', 'guided_loop.decay_share=0.5', 'guided_loop.warmup_steps=100', 'guided_loop.average_decay=0.99',
    'guided_objective.register_cosine=0.45', 'guided_objective.prefix_lengths=[2,4,8,8,8,8,16,16,32,64]', 'guided_loop.save_every=100000', 'guided_loop.evaluate_every=100000'))
steps = [dict(cmd=f'train guided --preset {P} --data corpus {lengths} {how} --from record --set guided_start=start --out run {D}', until=20 if TOY else 1480),
    dict(cmd=f"export run --data corpus --out model --without base --license apache-2.0 {'' if TOY else '--bits demasker=5,encoder=4'}")]
L = [64] if TOY else [256, 512]
how = dict(rule='revise', temperature=0.0, pace='text', corrector=0.25, crop=16)
cand = [dict(kind='oracle', who=w, length=l, registers=r, noise=n, name=f'{w} {l}: {r} real registers, noise {n}', knobs=dict(calls=l // 16, **how)) for w in ('model', 'start') for l in L for r, n in ([(4, 0.5)] if TOY else [(8, 0.5), (16, 1.0)])]
if not TOY: cand += [dict(kind='oracle', who='model', length=1024, registers=16, noise=0.5, name='model 1024: 16 real registers, noise 0.5', knobs=dict(calls=64, **how))]
S = dict(steps=steps, judge='smollm2-135m' if TOY else 'qwen2.5-coder-0.5b', judge_parts=[] if TOY else [f'q.0{i}' for i in range(9)], samples=8 if TOY else 500, late=1 if TOY else 3, candidates=cand, rows=900 if TOY else 1650, cache=os.path.expanduser('~/.cache/crocodil') if TOY else None)
json.dump(S, open('settings.json', 'w'), indent=1)
