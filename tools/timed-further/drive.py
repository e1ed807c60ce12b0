"""One timed run: stage guided goes on from the built-in model, is exported without a prior, and is measured by registers of real programs.

Folders below W (/tmp/w): in/, code/ (this, settings.json), src/, start/ (the built-in model), record/ (results/second/training), corpus/, run/, model/.
"""
import json, os, shutil, signal, subprocess, sys, time
exec(open(os.path.join(os.environ.get('W', '/tmp/w'), 'code/common.py')).read())
def main():
    join('libs')
    for z in (W / 'libs').glob('*.tar'): subprocess.run(['tar', 'xf', z, '-C', W / 'libs'])
    judge = sh(f'{sys.executable} code/judge.py', 'judge.log', CUDA_VISIBLE_DEVICES='') if S['judge_parts'] else None
    join('start'); join('corpus')
    for step in S['steps']:
        until_s = step.get('until')
        cmd = f"{CLI} {step['cmd']}" + (f' --minutes {max((until_s - now()) / 60, 0.1):.3f}' if until_s else '')
        if end(sh(cmd, 'train.log'), 'train.log'): say('FAILED', step['cmd']); break
    (W / 'model.done').touch()
    if judge: end(judge, 'judge.log')
    for who in ('model', 'start'):
        if not (W / who / 'crocodil.json').exists(): continue
        ev = [sh(f'{sys.executable} code/evals.py {k} {S["late"]} {who}', f'eval-{who}-{k}.log', **THREADS(4)) for k in range(S['late'])]
        until(ev, S['rows'])
    (W / 'all.done').touch(); say('ALL DONE')
main()
