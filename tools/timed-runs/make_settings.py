"""make_settings.py paper|ablations|registers|long [toy]: write settings.json."""
import json, os, sys
WHAT, TOY = sys.argv[1], 'toy' in sys.argv
P, D = ('tiny', '--device cpu') if TOY else ('builtin', '')
LOOPS = ('guided', 'prior', 'conditional', 'distilled')
M = (lambda x: 0.2) if TOY else (lambda x: x)
once = ' '.join(f'--set {name}_loop.{field}' for name in LOOPS for field in ('evaluate_every=100000', 'save_every=100000'))
fast = '--set guided_loop.num_accumulated=2 --set conditional_loop.num_accumulated=2 --set distilled_loop.num_accumulated=1'
toy = "--set guided_loop.decay_share=0.5 --set prior_loop.decay_share=0.5 --set conditional_loop.decay_share=0.5 --set distilled_loop.decay_share=0.5"
def same(lengths): return f"--preset {P} --data corpus {D} {once} " + (toy if TOY else f'{fast} --set lengths={lengths}')
bits = lambda names: '--bits 5' if TOY else '--bits ' + names
export = f"--data corpus --without base --license apache-2.0"
reproduce = lambda what, more: f"reproduce {what} --model start {'' if TOY else '--base results/second-base --run record --base-run results/second-base'} --data corpus {D} {more}"
second = ('--protocol code/toy-protocol.json' if TOY else '--protocol results/second/protocol.json') + ' --test fresh --out results/second'
T = f"timeout 250 {os.environ['REPO']}/.venv/bin/python" if TOY else 'timeout 250 python'
tests = f'{T} -m pytest -c tree/pyproject.toml --rootdir tree -m gpu -p no:cacheprovider -rs tree/tests/test_gpu.py'
# Undistilled priors draw in 16 steps.
drawn = f"{export} --early-stop --register-noise 0.5 --rule revise --temperature 0.0 --pace text --corrector 0.25 --crop 16 --prior-steps 16 --refresh-steps 16 --eta 0 {'' if TOY else '--registers 8'} --method conthendisc"
folder = 'second-priors' if WHAT == 'registers' else 'second-ablations'
ablated = f"--protocol {'code/toy-ablations.json' if TOY else f'results/{folder}/protocol.json'} --data corpus {D} --out results/{folder} --length {64 if TOY else 256}"
if WHAT == 'paper':
    # The paper: 4,000 of about 70,000 steps are warm-up of the encoder. AdamW at 3e-4 suits pretrained weights; the priors have about 2,000 steps each, so 5e-4 instead of the paper's 1e-4.
    slow = '--set encoder_warmup_steps=1' if TOY else '--set encoder_warmup_steps=120 --set guided_loop.learning_rate=3e-4 --set prior_loop.learning_rate=5e-4 --set conditional_loop.learning_rate=5e-4'
    s = f"{same('[256,256,512]')} --ablation 'as printed' {slow}"
    steps = [dict(cmd=f'train guided {s} --from first --out run', minutes=M(6.6)), dict(cmd=f'train registers {s} --out run', tests=True),
        dict(cmd=f'train prior {s} --out run', minutes=M(4.9)), dict(cmd=f'train conditional {s} --out run', minutes=M(4.9)),
        dict(cmd=f"export run --out model {export} --calibrate {2 if TOY else 16} {bits('demasker=5,encoder=4,prior=4,conditional=4')} --prior-steps 128 --refresh-steps 32 --rule confidence --temperature 0.7")]
    printed, ours = '''--compare "the paper's, a quarter=model"''', '--compare "ours, a quarter=ours"'
    lengths = [64] if TOY else [256, 512]
    rows = [reproduce('sweep generation', f'{second} {which} --length {n}') for n in lengths for which in (printed, ours)]
    S = dict(join=['first', 'corpus', 'ours', 'start', 'fresh'], first_join=['first', 'corpus'])
elif WHAT == 'ablations':
    names = ['', 'without nested dropout', 'without all-mask samples', 'register noise from halfway']
    s0 = same('[256]') + (' --set guided_loop.num_steps=20 --set conditional_loop.num_steps=40 --set encoder_warmup_steps=1 --set live_draws=4' if TOY else ' --set live_draws=4 --set guided_loop.num_steps=850 --set conditional_loop.num_steps=900')
    steps = []
    for i, name in enumerate(names):
        s = s0 + (f" --ablation '{name}'" if name else '') + (f' --set register_noise_from={10 if TOY else 425}' if 'halfway' in name else '')
        steps += [dict(cmd=f'train guided {s} --from first --out run{i}'), dict(cmd=f'train conditional {s} --out run{i}', tests=i == 0), dict(cmd=f'export run{i} --out model{i} {drawn}')]
    others = ' '.join(f"--ablation-model '{name}=model{i}'" for i, name in enumerate(names) if i)
    rows = [f'reproduce variants variant-autoencoders {ablated} --model model0 {others}']
    S = dict(join=['first', 'corpus'], first_join=['first', 'corpus'])
elif WHAT == 'registers':
    # The networks of the built-in model; priors of 8 to 64 registers and one without offsets, each for the same steps. Stage guided only copies: its learning rate is tiny.
    s0 = same('[256]') + (' --set conditional_loop.num_steps=40 --set encoder_warmup_steps=0 --set live_draws=4' if TOY else ' --set live_draws=4 --set conditional_loop.num_steps=1300')
    copy = '--set guided_loop.learning_rate=1e-12 --set guided_loop.num_steps=5 --set guided_loop.warmup_steps=1 --set guided_start=start'
    small = (lambda n: n // 8) if TOY else (lambda n: n)
    steps = [dict(cmd=f'train guided {s0} {copy} --out run0')]
    variants = [('', ''), *((f'registers {small(n)}', f'--set conditional.num_registers={small(n)} --set prior.num_registers={small(n)}') for n in (8, 32, 64)), ('without block offsets', "--ablation 'without block offsets'")]
    for i, (name, how) in enumerate(variants):
        if i: steps += [dict(sh=f'mkdir run{i} && ln -s ../run0/guided run{i}/')]
        steps += [dict(cmd=f'train conditional {s0} {copy} {how} --out run{i}', tests=i == 0), dict(cmd=f'export run{i} --out model{i} {drawn}')]
    others = ' '.join(f"--ablation-model '{name}=model{i}'" for i, (name, _) in enumerate(variants) if i)
    rows = [f'reproduce register-count variants {ablated} --model model0 {others}', f'reproduce refresh {ablated} --model model0']
    S = dict(join=['start', 'corpus'], first_join=['start', 'corpus'])
elif WHAT == 'long':
    # Stage guided goes on from `ours`, with canvases of 1,024 tokens; it comes home in 8 bits.
    lengths = '[64]' if TOY else '[256,256,256,512,512,1024]'
    s = same(lengths).replace('guided_loop.num_accumulated=2', 'guided_loop.num_accumulated=4') + (' --set guided_loop.num_steps=20 --set encoder_warmup_steps=0' if TOY else '') + f' --set guided_start=oursrun/guided/model'
    lay = 'mkdir -p oursrun/guided/model && tar xzf code/oursrun.tgz -C oursrun && cp -rL ours/demasker ours/encoder oursrun/guided/model/'
    steps = [dict(sh='mkdir -p oursrun/guided/model && cp runours/run.json oursrun/ && cp runours/guided/stage.json oursrun/guided/ && cp -rL ours/demasker ours/encoder oursrun/guided/model/' if TOY else lay),
        dict(cmd=f'train guided {s} --out run', **({} if TOY else dict(minutes=21.5))), dict(cmd=f"export run --out model {export} --bits 8"), dict(cmd=f"export run --out model5 {export} --calibrate {2 if TOY else 16} {bits('demasker=5,encoder=4')}")]
    rows = []
    S = dict(join=['ours', 'corpus'], first_join=['ours', 'corpus'])
else: raise SystemExit(__doc__)
S |= dict(steps=steps, rows=rows, tests=tests, until=4000 if TOY else 1660, judge='smollm2-135m' if TOY else 'qwen2.5-coder-0.5b', judge_parts=[] if TOY else [f'q.0{i}' for i in range(9)], cache=os.environ.get('TOY_CACHE') if TOY else None)
if TOY: S['join'] = []
json.dump(S, open('settings.json', 'w'), indent=1)
