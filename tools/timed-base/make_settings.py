import json, os, sys
TOY = 'toy' in sys.argv
S = dict(preset='builtin', judge='qwen2.5-coder-0.5b', judge_parts=[f'q.0{i}' for i in range(9)], least=0.05, tail=25, device='', compiled='--compiled',
    until=dict(base=190, rows=1130, clock=1230, head=1480, evals=1660),  # the base needs 560 steps: 60 s, and 40 s to compile
    experiments=[['reference anchor likelihood autoencoder sweep generation seconds', 256], ['reference anchor autoencoder generation seconds', 512], ['interpolation refresh register-count psnr prdc cpu-seconds', 256]],
    clock=['--model start --compiled --length 256 --calls 8 16 256', '--model start --compiled --length 256 --calls 8 --method conthendisc --batch 1'],
    head='--preset builtin --set head_of=start --from record --set head_loop.evaluate_every=100000',
    set=['base_draft_rate=0', 'base_loop.num_accumulated=1', 'base_loop.learning_rate=7e-4', 'base_loop.warmup_steps=50', 'base_loop.decay_share=0.8', 'base_loop.average_decay=0.99', 'base_loop.save_every=100000', 'base_loop.evaluate_every=100000'],
    samples=500, late=3, cache=None)
cand = [dict(kind='conthendisc', who='head', length=256, name=f'{c} calls, in turn {t}', knobs=dict(calls=c, in_turn=t)) for c in (16, 8, 4, 2) for t in ('new', 'no')]
if TOY:
    S |= dict(preset='tiny', judge='smollm2-135m', judge_parts=[], cache=os.path.expanduser('~/.cache/crocodil'), tail=1, until=dict(base=40, rows=900, clock=950, head=215, evals=600), device='--device cpu', compiled='', samples=8, late=1,
        experiments=[['sweep', 64]], clock=['--length 64 --calls 4 --batch 1 --repeats 1 --model start'], head='--preset tiny --set head_of=start --from record --set head_loop.decay_share=0.4', set=['base_draft_rate=0', 'base_loop.decay_share=0.5', 'base_loop.warmup_steps=0'])
    cand = [dict(kind='conthendisc', who='head', length=64, name='4 calls, in turn', knobs=dict(calls=4, in_turn='new'))]
S['candidates'] = cand
json.dump(S, open('settings.json', 'w'), indent=1)
