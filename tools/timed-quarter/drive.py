"""One timed run: train a model in stages, each for its minutes, export it, and measure it beside the built-in one.

Folders below W (/tmp/w): in/, code/ (this, settings.json, protocol.json), src/, start/ (the built-in model), first/ (a finished base), corpus/, run/, model/, results/.
"""
import json, os, shutil, signal, subprocess, sys, time
exec(open(os.path.join(os.environ.get('W', '/tmp/w'), 'code/common.py')).read())
def main():
    join('libs')
    for z in (W / 'libs').glob('*.tar'): subprocess.run(['tar', 'xf', z, '-C', W / 'libs'])
    judge = sh(f'{sys.executable} code/judge.py', 'judge.log', CUDA_VISIBLE_DEVICES='') if S['judge_parts'] else None
    join('first'); join('corpus')
    for step in S['steps']:
        minutes = step.get('minutes')
        cmd = f"{CLI} {step['cmd']}" + (f' --minutes {minutes}' if minutes else '')
        if end(sh(cmd, 'train.log'), 'train.log'): say('FAILED', step['cmd']); break
        if step.get('mark'): (W / step['mark']).touch()
    (W / 'model.done').touch()
    join('start')
    if judge: end(judge, 'judge.log')
    if (W / 'model').exists():
        ev = [sh(f'{sys.executable} code/evals.py {k} {S["late"]} model', f'eval-{k}.log', **THREADS(4)) for k in range(S['late'])]
        until(ev, S['until']['rows'])
    (W / 'all.done').touch(); say('ALL DONE')
main()
