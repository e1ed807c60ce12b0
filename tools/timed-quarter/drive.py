"""One timed run: train a model in stages, each for its minutes, export it, and measure it by the protocol beside the built-in one.

Folders below W (/tmp/w): in/, code/ (this, settings.json), src/, start/ (the built-in model), record/ (results/second/training), first/ (a finished base), corpus/, fresh/,
results/second/ (the committed rows, which stay valid), results/second-base/, run/, model/.
"""
import os, shutil, subprocess, sys
exec(open(os.path.join(os.environ.get('W', '/tmp/w'), 'code/common.py')).read())
def main():
    join('libs')
    for z in (W / 'libs').glob('*.tar'): subprocess.run(['tar', 'xf', z, '-C', W / 'libs'])
    judge = sh(f'{sys.executable} code/judge.py', 'judge.log', CUDA_VISIBLE_DEVICES='') if S['judge_parts'] else None
    join('first'); shutil.copytree(W / 'first/base/model/demasker', W / 'results/second-base', dirs_exist_ok=True)
    join('corpus')
    for step in S['steps']:
        cmd = f"{CLI} {step['cmd']}" + (f" --minutes {step['minutes']}" if 'minutes' in step else '')
        if end(sh(cmd, 'train.log'), 'train.log'): say('FAILED', step['cmd']); break
    (W / 'model.done').touch()
    join('start'); join('fresh')
    if judge: end(judge, 'judge.log')
    if (W / 'model/crocodil.json').exists():
        for length in S['lengths']:
            until([sh(f"{CLI} {S['rows']} --length {length}", 'rows.log')], S['until'])
    (W / 'all.done').touch(); say('ALL DONE')
main()
