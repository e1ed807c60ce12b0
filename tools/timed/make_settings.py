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

def mflags(noise, steps): return f'--early-stop --register-noise {noise} --rule revise --temperature 0.0 --pace text --prior-steps {steps} --refresh-steps {steps} --eta 0 --curve 1.0 --method conthendisc'
def m(noise, steps, kind='conthendisc', who='model', calls=16, length=256, choice=True, eta=0.0, **more):
    k = dict(early_stop=True, register_noise=noise, rule='revise', temperature=0.0, pace='text', prior_steps=steps, refresh_steps=steps, eta=eta, calls=calls) | more
    c = dict(name=f"{who} {'Then' if kind == 'conthendisc' else 'Within'} {length} noise {noise} steps {steps} calls {calls}{' ' + str(more) if more else ''}", kind=kind, who=who, length=length, knobs=k)
    if choice and who == 'model' and kind == 'conthendisc' and calls == 16 and length == 256: c['choice'] = mflags(noise, steps)
    cand.append(c)
W = 'conwithindisc'
m(1.0, 4); m(1.38, 3); m(2.07, 2); m(1.0, 4, W); m(1.0, 4, W, refresh_from=0.5, refresh_steps=2); m(1.2, 4); m(1.0, 4, length=512); m(1.0, 4, W, refresh_from=0.25, refresh_steps=1); m(1.0, 4, choice=False, apart=2); m(1.0, 4, calls=32); m(1.0, 4, W, calls=32); m(1.0, 16, who='teacher', eta=1.0)
S = dict(
  preset='small', causal='', layers=L, device='', judge='qwen2.5-coder-0.5b', judge_parts=[f'q.0{i}' for i in range(9)], samples=1000, num_evals=3, least=0.05,
  tail=dict(conditional=18, distilled=60), body=True, until=dict(conditional=320, distilled=1300, choice=1440, rows=1722), warm_wait=90, start=True, prior_only=True, cached=True,
  set=dict(
    all=['lengths=[256,256,512]', 'conditional.num_registers=16', 'prior.num_registers=16', 'prior.width=768', 'conditional.width=768', 'prior.num_heads=6', 'conditional.num_heads=6', 'prior_objective.time_shift=0.5', 'conditional.self_conditioned=false', 'prior.self_conditioned=false', 'prior_objective.smallest_noise=0.7', 'prior_objective.largest_offset=0', 'denoiser_begins_as_demasker=true'],
    conditional=['conditional_loop.batch_size=2048', 'conditional_loop.num_accumulated=2', 'conditional_loop.decay_share=0.7', 'conditional_loop.average_decay=0.995', 'conditional_loop.learning_rate=5e-4', 'conditional_loop.weight_decay=0.1', 'prior_objective.bare_rate=0.6', 'conditional_start=tea', 'conditional_loop.save_every=100000', 'conditional_loop.evaluate_every=100000'],
    distilled=['distil_objective.by_matching=true', 'prior_objective.bare_rate=0.75', 'distilled_loop.batch_size=256', 'distilled_loop.num_accumulated=1', 'distilled_loop.optimiser=muon', 'distilled_loop.learning_rate=5e-4', 'distilled_loop.weight_decay=0.01', 'distilled_loop.warmup_steps=100', 'distilled_loop.decay_share=0.5', 'distilled_loop.average_decay=0.997', 'distilled_loop.save_every=100000', 'distilled_loop.evaluate_every=100000'],
    ),
  export=mflags(1.0, 4), export_teacher='--early-stop --register-noise 1.0 --rule revise --temperature 0.0 --pace text --prior-steps 16 --refresh-steps 16 --eta 1.0 --method conthendisc', candidates=cand, lengths=[256, 512], protocol='defaults', experiments='reference autoencoder generation',
)
json.dump(S, open('settings.json', 'w'), indent=1)
print(len(cand))
