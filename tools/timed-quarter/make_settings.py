"""make_settings.py [paper] [toy]"""
import json, os, sys
TOY, PAPER = 'toy' in sys.argv, 'paper' in sys.argv
P = 'tiny' if TOY else 'builtin'
D = '--device cpu' if TOY else ''
ab = "--ablation 'as printed'" if PAPER else ''
lengths = "--set guided_loop.decay_share=0.5 --set prior_loop.decay_share=0.5 --set conditional_loop.decay_share=0.5 --set distilled_loop.decay_share=0.5 --set 'distil_objective.teachers=[\"conditional\"]'" if TOY else "--set lengths=[256,256,512]"
same = f"--preset {P} --data corpus {ab} {D} {lengths}"
M = (lambda x: 0.1) if TOY else (lambda x: x)
L = 64 if TOY else 256
if PAPER:
    steps = [dict(cmd=f'train guided {same} --from first --out run', minutes=M(7.0)), dict(cmd=f'train registers {same} --out run'),
        dict(cmd=f'train prior {same} --out run', minutes=M(5.6)), dict(cmd=f'train conditional {same} --out run', minutes=M(5.6)),
        dict(cmd=f"export run --data corpus --out model {'' if TOY else '--bits demasker=5,encoder=4,prior=4,conditional=4'} --without base --license apache-2.0 --prior-steps 128 --refresh-steps 32 --rule confidence --temperature 0.7")]
    knobs = [dict(rule='confidence', temperature=t) for t in (0.0, 0.5, 0.7, 0.9)]
else:
    steps = [dict(cmd=f'train guided {same} --from first --out run', minutes=M(7.0)), dict(cmd=f'train registers {same} --out run'),
        dict(cmd=f'train conditional {same} --out run', minutes=M(7.2)), dict(cmd=f'train distilled {same} --out run', minutes=M(4.0)),
        dict(cmd=f"export run --data corpus --out model {'' if TOY else '--calibrate 16 --bits demasker=5,encoder=4,conditional=4'} --without base --license apache-2.0 --early-stop --register-noise 0.5 --rule revise --temperature 0.0 --pace text --corrector 0.25 --crop 16 --prior-steps 4 --refresh-steps 4 --eta 0 {'' if TOY else '--registers 8'} --method conthendisc")]
    knobs = [dict(), dict(register_noise=0.7), dict(register_noise=1.0)]
cand = [dict(kind=m, who='model', length=L, name=f'{m[3:7]} {k}', knobs=dict(calls=4 if TOY else 16, **k)) for k in knobs for m in ('conthendisc', 'conwithindisc')]
S = dict(steps=steps, judge='qwen2.5-coder-0.5b', judge_parts=[] if TOY else [f'q.0{i}' for i in range(9)], samples=8 if TOY else 500, late=1 if TOY else 3, candidates=cand, until=dict(rows=900 if TOY else 1650), cache=os.path.expanduser('~/.cache/crocodil') if TOY else None)
json.dump(S, open('settings.json', 'w'), indent=1)
