"""One timed run: train models in stages, each for its minutes, export them, and measure them.

Folders below W (/tmp/w): in/, code/ (this, settings.json), src/, tree/ (with tests), start/ (the built-in model), ours/ (a model of an earlier run),
record/ (results/second/training), first/ (a finished base), corpus/, fresh/, results/ (the committed rows, which stay valid), run*/, model*/.
"""
import os, shutil, subprocess, sys
exec(open(os.path.join(os.environ.get('W', '/tmp/w'), 'code/common.py')).read())
def main():
    if S['judge_parts']: join('libs')
    for z in (W / 'libs').glob('*.tar'): subprocess.run(['tar', 'xf', z, '-C', W / 'libs'])
    judge = sh(f'{sys.executable} code/judge.py', 'judge.log', CUDA_VISIBLE_DEVICES='') if S['judge_parts'] else None
    later = list(S['join'])
    for what in list(later):
        if what in S['first_join']: join(what); later.remove(what)
    if (W / 'first/base/model/demasker').exists(): shutil.copytree(W / 'first/base/model/demasker', W / 'results/second-base', dirs_exist_ok=True)
    beside = None
    for step in S['steps']:
        if now() > S['until'] - 60: say('no time for', str(step)[:90]); continue
        if 'sh' in step: subprocess.run(step['sh'], shell=True, cwd=W, check=True); continue
        if step.get('tests') and S.get('tests'): beside = sh(S['tests'], 'gpu-tests.log', PYTHONPATH=f'{W}/tree/src:{W}/libs')
        cmd = f"{CLI} {step['cmd']}" + (f" --minutes {step['minutes']}" if 'minutes' in step else '')
        if end(sh(cmd, 'train.log'), 'train.log') and not step.get('may_fail'): say('FAILED', step['cmd']); break
    (W / 'model.done').touch()
    if beside: end(beside, 'gpu-tests.log')
    for what in later: join(what)
    if judge: end(judge, 'judge.log')
    for rows in S['rows']:
        if now() < S['until'] - 10: until([sh(f"{CLI} {rows}", 'rows.log')], S['until'])
    (W / 'all.done').touch(); say('ALL DONE')
main()
