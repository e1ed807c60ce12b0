"""make_settings.py [paper] [toy]"""
import json, os, sys
TOY, PAPER = 'toy' in sys.argv, 'paper' in sys.argv
P, D = ('tiny', '--device cpu') if TOY else ('builtin', '')
ab = "--ablation 'as printed'" if PAPER else ''
once = ' '.join(f'--set {name}_loop.{field}' for name in ('guided', 'prior', 'conditional', 'distilled') for field in ('evaluate_every=100000', 'save_every=100000'))
fast = '--set guided_loop.num_accumulated=2 --set conditional_loop.num_accumulated=2 --set distilled_loop.num_accumulated=1 --set lengths=[256,256,512]'
toy = "--set guided_loop.decay_share=0.5 --set prior_loop.decay_share=0.5 --set conditional_loop.decay_share=0.5 --set distilled_loop.decay_share=0.5 --set 'distil_objective.teachers=[\"conditional\"]'"
# The paper: 4,000 of about 70,000 steps are warm-up of the encoder. AdamW at 3e-4 suits pretrained weights; the priors have about 2,000 steps each, so 5e-4 instead of the paper's 1e-4.
slow = '--set encoder_warmup_steps=120 --set guided_loop.learning_rate=3e-4 --set prior_loop.learning_rate=5e-4 --set conditional_loop.learning_rate=5e-4'
same = f"--preset {P} --data corpus {ab} {D} {once} {toy if TOY else fast} {('--set encoder_warmup_steps=5' if TOY else slow) if PAPER else ''}"
M = (lambda x: 0.1) if TOY else (lambda x: x)
name = "the paper's, a quarter" if PAPER else 'ours, a quarter'
export = f"export run --data corpus --out model --without base --license apache-2.0 {'--calibrate 2 --bits 5' if TOY else '--calibrate 16'}"
if PAPER:
    steps = [dict(cmd=f'train guided {same} --from first --out run', minutes=M(7.0)), dict(cmd=f'train registers {same} --out run'),
        dict(cmd=f'train prior {same} --out run', minutes=M(5.6)), dict(cmd=f'train conditional {same} --out run', minutes=M(5.6)),
        dict(cmd=f"{export} {'' if TOY else '--bits demasker=5,encoder=4,prior=4,conditional=4'} --prior-steps 128 --refresh-steps 32 --rule confidence --temperature 0.7")]
else:
    steps = [dict(cmd=f'train guided {same} --from first --out run', minutes=M(7.0)), dict(cmd=f'train registers {same} --out run'),
        dict(cmd=f'train conditional {same} --out run', minutes=M(7.2)), dict(cmd=f'train distilled {same} --out run', minutes=M(4.0)),
        dict(cmd=f"{export} {'' if TOY else '--bits demasker=5,encoder=4,conditional=4'} --early-stop --register-noise 0.5 --rule revise --temperature 0.0 --pace text --corrector 0.25 --crop 16 --prior-steps 4 --refresh-steps 4 --eta 0 {'' if TOY else '--registers 8'} --method conthendisc")]
rows = f'''reproduce sweep generation --protocol {'code/toy-protocol.json' if TOY else 'results/second/protocol.json'} --model start --base {'first/base/model/demasker' if TOY else 'results/second-base'} {'' if TOY else '--run record --base-run results/second-base'} --compare "{name}=model" --data corpus --test fresh {D} --out results/second'''
S = dict(steps=steps, rows=rows, lengths=[64] if TOY else [256, 512], until=2000 if TOY else 1690, judge='smollm2-135m' if TOY else 'qwen2.5-coder-0.5b', judge_parts=[] if TOY else [f'q.0{i}' for i in range(9)], cache=os.path.expanduser('~/.cache/crocodil') if TOY else None)
json.dump(S, open('settings.json', 'w'), indent=1)
