"""One timed run: the base gets the rest of its compute, its rows are measured again, then what the protocol still lacks, speed, and a causal head.

Folders below W (/tmp/w): in/, code/, src/, benchmarks/, start/ (the built-in model), record/ (results/second/training), first/ (the base to go on from), corpus/, fresh/,
results/second/ (the committed rows: those of guided methods stay valid), run/ (the base), run-head/.
"""
import json, os, shutil, signal, subprocess, sys, time
exec(open(os.path.join(os.environ.get('W', '/tmp/w'), 'code/common.py')).read())
def main():
    join('libs')
    for z in (W / 'libs').glob('*.tar'): subprocess.run(['tar', 'xf', z, '-C', W / 'libs'])
    judge = sh(f'{sys.executable} code/judge.py', 'judge.log', CUDA_VISIBLE_DEVICES='') if S['judge_parts'] else None
    join('start'); join('first'); join('corpus')
    minutes = max((S['until']['base'] - now() - S['tail']) / 60, S['least'])
    end(sh(f"{CLI} train base --preset {S['preset']} --data corpus --from record --set base_start=first/base/model --out run {' '.join('--set ' + x for x in S['set'])} --minutes {minutes:.3f} {S['device']}", 'train.log'), 'train.log')
    end(sh(f'{sys.executable} code/keep.py', 'keep.log', CUDA_VISIBLE_DEVICES=''), 'keep.log')
    shutil.copytree(W / 'base', W / 'results/second-base', dirs_exist_ok=True); (W / 'base.done').touch()
    join('fresh')
    if judge: end(judge, 'judge.log')
    same = f"--protocol code/protocol.json --model start --base results/second-base --run record --base-run run --data corpus --test fresh {S['device']} {S['compiled']} --out results/second"
    for experiments, length in S['experiments']:
        until([sh(f'{CLI} reproduce {experiments} {same} --length {length}', 'rows.log')], S['until']['rows'])
    for args in S['clock']: until([sh(f'{sys.executable} benchmarks/builtin.py {args}', 'clock.log')], S['until']['clock'])
    if S['head']:
        minutes = (S['until']['head'] - now()) / 60
        if minutes > 2: end(sh(f"{CLI} train head {S['head']} --data corpus --out run-head --minutes {minutes:.3f} {S['device']}", 'head.log'), 'head.log')
        if (W / 'run-head/head/model').exists():
            until([sh(f'{sys.executable} code/evals.py {k} {S["late"]} head', f'eval-{k}.log', **THREADS(4)) for k in range(S['late'])], S['until']['evals'])
    (W / 'all.done').touch(); say('ALL DONE')
main()
