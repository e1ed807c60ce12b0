import json, sys
PRIOR = 'prior' in sys.argv  # train the denoiser alone
PRIOR = PRIOR or 'body' in sys.argv
START = PRIOR or 'start' in sys.argv  # go on from networks of an earlier run
L = '0,1,2,8,9,11,15,16,17,18,20,23,24,27,28,29'
def flags(noise, t, steps, eta, pace='text', refresh=None, curve=1.0):
    return f'--early-stop --register-noise {noise} --rule revise --temperature {t} --pace {pace} --prior-steps {steps} --refresh-steps {refresh or steps} --eta {eta} --curve {curve} --method conthendisc'
def knobs(noise, t, steps=8, eta=1.0, pace='text', calls=16, **more):
    return dict(early_stop=True, register_noise=noise, rule='revise', temperature=t, pace=pace, prior_steps=steps, refresh_steps=steps, eta=eta, calls=calls, **more)
cand = []
def then(noise, t, **more):
    k = knobs(noise, t, **more)
    label = ' '.join(f'{a} {b}' for a, b in more.items())
    c = dict(name=f'Then noise {noise} T {t} {label}', kind='conthendisc', knobs=k)
    if k['calls'] == 16 and not set(more) - {'steps', 'eta', 'pace', 'curve'}: c['choice'] = flags(noise, t, k['prior_steps'], k['eta'], k['pace'], curve=k.get('curve', 1.0))
    cand.append(c)
def within(noise, t, **more):
    label = ' '.join(f'{a} {b}' for a, b in more.items())
    cand.append(dict(name=f'Within noise {noise} T {t} {label}', kind='conwithindisc', knobs=knobs(noise, t, **more)))
then(2.0, 0.0); then(1.4, 0.0); then(1.0, 0.0)
then(1.4, 0.0, curve=0.5); then(0.7, 0.0); then(1.0, 0.0, curve=0.5)
then(2.0, 0.0, curve=0.5); then(1.0, 0.0, steps=16)
cand.append(dict(name='oracle 16 noise 2.0', kind='oracle', registers=16, noise=2.0, knobs=dict(calls=16, rule='revise', pace='text')))
within(1.4, 0.0); then(1.4, 0.0, calls=64)
cand.append(dict(name='before Then', kind='conthendisc', who='start' if START else 'first', knobs=dict(calls=16)))
cand.append(dict(name='oracle 16 noise 1.0', kind='oracle', registers=16, noise=1.0, knobs=dict(calls=16, rule='revise', pace='text')))
cand.append(dict(name='oracle 16 noise 0', kind='oracle', registers=16, noise=0.0, knobs=dict(calls=16, rule='revise', pace='text')))
then(1.4, 0.0, steps=16); then(1.4, 0.0, calls=64)
then(1.4, 0.0, pace='canvas'); within(1.4, 0.0, calls=64)
cand.append(dict(name='oracle 64 noise 0', kind='oracle', registers=64, noise=0.0, knobs=dict(calls=16, rule='revise', pace='text')))
cand.append(dict(name='real', kind='real'))
cand.append(dict(name='base 256 calls T .75 random', kind='base', knobs=dict(calls=256, rule='random', temperature=0.75)))
cand.append(dict(name='base 16 calls T .75 random', kind='base', knobs=dict(calls=16, rule='random', temperature=0.75)))
BODY = 'body' in sys.argv  # the denoiser begins as a denoiser with the blocks of the demasker, in the folder jbm
if BODY:
    cand = []
    def t(noise, who='model', **more): then(noise, 0.0, **more); cand[-1]['who'] = who; who != 'model' and cand[-1].pop('choice', None)
    for noise in (1.4, 1.0, 2.0): t(noise, steps=16)
    for noise, w in ((1.0, 2.0), (1.0, 3.0), (1.4, 2.0), (0.7, 2.0), (0.7, 3.0)): t(noise, 'modelw', steps=16, autoguidance=w)
    within(1.4, 0.0, steps=16); t(1.0, steps=32); t(0.7, steps=32); t(1.0, 'modelw', steps=32, autoguidance=1.5); within(1.0, 0.0, steps=16); t(1.4, 'modelw', steps=16, autoguidance=3.0)
    cand.append(dict(name='before Then', kind='conthendisc', who='start', knobs=dict(calls=16)))
    t(1.4, steps=8); t(1.0, steps=16, calls=32); t(1.0, 'modelw', steps=16, calls=32, autoguidance=2.0); within(1.4, 0.0, steps=16, calls=64)
S = dict(
  preset='small', causal=f'--causal trimmed --layers {L}', layers=L, device='', judge='qwen2.5-coder-0.5b', judge_parts=[f'q.0{i}' for i in range(9)], samples=1000, num_evals=3, least=0.05,
  tail=dict(base=20, guided=15, conditional=10),
  body=BODY, until=dict(base=285, guided=1005, conditional=1335, choice=1482, rows=1722), warm_wait=90, start=START, prior_only=PRIOR, cached=PRIOR,
  set=dict(
    all=['lengths=[256,256,512]' if BODY else 'lengths=[256,256,256,256,256,256,512]', 'conditional.num_registers=16', 'prior.num_registers=16', 'prior.width=768', 'conditional.width=768', 'prior.num_heads=6', 'conditional.num_heads=6', f'prior_objective.time_shift={0.5 if PRIOR else 2.0}'],
    base=['base_loop.num_accumulated=1', 'base_loop.learning_rate=2e-3', 'base_loop.decay_share=0', 'base_loop.average_decay=0.995', 'base_loop.save_every=100000', 'base_loop.evaluate_every=100000'],
    guided=['guided_loop.num_accumulated=2', 'guided_loop.learning_rate=1e-3', 'guided_loop.decay_share=0.5', 'guided_objective.register_cosine=0.35', 'guided_objective.uniform_noise=true', 'guided_objective.prefix_lengths=[2,4,8,16,16,16,16,16,32,64]', 'guided_objective.partial_rate=0.2', 'guided_objective.draft_rate=0.5', 'guided_loop.average_decay=0.99', 'guided_loop.save_every=100000', 'guided_loop.evaluate_every=100000'],
    conditional=(['conditional_loop.batch_size=2048', 'conditional_loop.decay_share=0.5', 'conditional_loop.average_decay=0.999', 'prior_objective.bare_rate=0.95', 'prior_objective.smallest_noise=0.7'] + (['denoiser_begins_as_demasker=true', 'conditional_start=jbm', 'conditional_loop.num_accumulated=2', 'conditional_loop.learning_rate=1e-3', 'conditional_loop.weight_decay=0.1', 'conditional_loop.average_decay=0.998', 'prior_objective.bare_rate=0.8', 'prior_objective.largest_offset=0'] if BODY else []) if PRIOR else ['live_draws=4', 'conditional_loop.batch_size=512', 'conditional_loop.decay_share=0.4', 'conditional_loop.average_decay=0.995']) + [ 'conditional_loop.save_every=100000', 'conditional_loop.evaluate_every=5000']),
  export=flags(1.4, 0.0, 8, 1.0), candidates=cand, lengths=[256, 512], protocol='defaults',
  experiments='reference autoencoder generation',
)
json.dump(S, open('settings.json', 'w'), indent=1)
print(len(cand))
