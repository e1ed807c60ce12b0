import json, sys
def flags(noise, t, steps=8, eta=1.0, pace='text', curve=1.0):
    return f'--early-stop --register-noise {noise} --rule revise --temperature {t} --pace {pace} --prior-steps {steps} --refresh-steps {steps} --eta {eta} --curve {curve} --method conthendisc'
def knobs(noise, t=0.0, steps=8, eta=1.0, pace='text', calls=16, **more):
    return dict(early_stop=True, register_noise=noise, rule='revise', temperature=t, pace=pace, prior_steps=steps, refresh_steps=steps, eta=eta, calls=calls, **more)
cand = []
def then(who, noise, t=0.0, **more):
    k = knobs(noise, t, **more)
    c = dict(name=f"{who} Then noise {noise} T {t} {' '.join(f'{a} {b}' for a, b in more.items())}", kind='conthendisc', who=who, knobs=k)
    if k['calls'] == 16 and who != 'start' and not set(more) - {'steps', 'eta', 'pace', 'curve'}: c['choice'] = flags(noise, t, k['prior_steps'], k['eta'], k['pace'], k.get('curve', 1.0))
    cand.append(c)
def within(who, noise, t=0.0, **more):
    cand.append(dict(name=f"{who} Within noise {noise} T {t} {' '.join(f'{a} {b}' for a, b in more.items())}", kind='conwithindisc', who=who, knobs=knobs(noise, t, **more)))
def oracle(who, n, noise):
    cand.append(dict(name=f'{who} oracle {n} noise {noise}', kind='oracle', who=who, registers=n, noise=noise, knobs=dict(calls=16, rule='revise', pace='text')))
A, B, C, O = 'modela', 'modelb', 'modelc', 'start'
for noise in (2.0, 1.4, 1.0):
    for who in (B, C, A, O): then(who, noise)
then(B, 0.7); then(C, 0.7)
then(B, 1.4, calls=8); then(C, 1.4, calls=8); then(A, 1.4, calls=8)
then(B, 1.4, calls=32); then(C, 1.4, calls=32); then(A, 1.4, calls=32)
within(B, 1.4); within(C, 1.4)
then(B, 1.4, calls=64); then(O, 1.4, calls=48)
then(B, 2.6); then(C, 2.6)
oracle(B, 16, 0.0); oracle(C, 16, 0.0); oracle(A, 16, 0.0)
then(B, 1.0, steps=16); then(C, 1.0, steps=16)
then(B, 1.4, t=0.5); then(C, 1.4, t=0.5)
cand.append(dict(name='real', kind='real'))
then(C, 2.0, calls=8); then(B, 2.0, calls=8)
oracle(B, 64, 0.0); oracle(C, 64, 0.0)
S = dict(
  preset='small', device='', judge='qwen2.5-coder-0.5b', judge_parts=[f'q.0{i}' for i in range(9)], samples=1000, num_evals=3,
  teach=[['1.0', 101], ['1.4', 102], ['2.0', 103]], teach_calls=48, teach_batch=256, teach_count=200000, compiled='--compiled', rate=0.5,
  until=dict(teach=330, train=915, choice=1150, rows=1392), start=True,
  set=dict(
    all=['lengths=[256,256,256,256,256,256,512]', 'conditional.num_registers=16', 'prior.num_registers=16', 'prior.width=768', 'conditional.width=768', 'prior.num_heads=6', 'conditional.num_heads=6', 'prior_objective.time_shift=2.0'],
    guided=['guided_loop.num_steps=1000', 'guided_loop.num_accumulated=4', 'guided_loop.learning_rate=5e-4', 'guided_loop.decay_share=0.8', 'guided_objective.register_cosine=0.35', 'guided_objective.uniform_noise=true', 'guided_objective.prefix_lengths=[2,4,8,16,16,16,16,16,32,64]', 'guided_objective.partial_rate=0.2', 'guided_objective.draft_rate=0.5', 'guided_loop.average_decay=0.99', 'guided_loop.save_every=100000', 'guided_loop.evaluate_every=100000']),
  export=flags(1.4, 0.0), candidates=cand, lengths=[256, 512], protocol='defaults', experiments='reference autoencoder generation')
if 'toy' in sys.argv:
    S.update(teach_calls=2, teach_batch=2, teach_count=4, compiled='', device='--device cpu', lengths=[256], num_evals=1, candidates=[c for c in cand if c['name'].startswith('modelb Then noise 2.0')][:1], samples=2)
    S['set']['guided'] = [x for x in S['set']['guided'] if 'num_steps' not in x and 'accum' not in x] + ['guided_loop.num_steps=2', 'guided_loop.batch_size=4', 'guided_loop.num_accumulated=1', 'guided_loop.compile_blocks=false', 'guided_loop.warmup_steps=0']
json.dump(S, open('settings.json', 'w'), indent=1)
print(len(cand))
