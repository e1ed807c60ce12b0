"""One timed run of a base that goes on from `first` (a base): data, training, bound, rows on validation programs.

Folders are below W (/tmp/w): in/ (parts that arrive), code/ (this, settings.json), src/, start/ (the built-in model), record/
(results/second/training), first/ (run.json and base/model/demasker of the base to go on from), corpus/, run/ (the base), res/ (rows).
"""
import json, lzma, os, shutil, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
W = Path(os.environ.get('W', '/tmp/w')); IN = W / 'in'
T0 = int((W / 't0').read_text())
S = json.loads((W / 'code/settings.json').read_text())
ENV = {**os.environ, 'PYTHONPATH': f'{W}/src:{W}/libs', 'HF_HUB_OFFLINE': '1', 'CROCODIL_CACHE': f'{W}/cache', 'PYTHONUNBUFFERED': '1', 'TORCHINDUCTOR_CACHE_DIR': f'{W}/inductor', 'W': str(W)}
now = lambda: time.time() - T0
def say(*a): print(f'[{now():.0f}]', *a, flush=True)
def sh(cmd, log, **k):
    say('start', cmd[:200]); return subprocess.Popen('exec ' + cmd, shell=True, env={**ENV, **k}, stdout=open(W / log, 'w'), stderr=subprocess.STDOUT, cwd=W)
def end(p, log):
    rc = p.wait(); say('end rc', rc, log, (W / log).read_text()[-400:].replace('\n', ' | ')); return rc
def need(*names):
    while not all((IN / n).exists() for n in names): time.sleep(0.3)
def unxz(pair):
    src, dst, offset = pair; data = lzma.open(src).read()
    with open(dst, 'r+b') as f: f.seek(offset); f.write(data)
def join(what):
    need(f'{what}.json'); plan = json.loads((IN / f'{what}.json').read_text())
    need(*[p['part'] for p in plan['parts']])
    for name, size in plan['files'].items():
        (W / what / name).parent.mkdir(parents=True, exist_ok=True)
        with open(W / what / name, 'wb') as f: f.truncate(size)
    with ProcessPoolExecutor(os.cpu_count()) as pool: list(pool.map(unxz, [(IN / p['part'], W / what / p['file'], p['offset']) for p in plan['parts']]))
    for p in plan['parts']: (IN / p['part']).unlink()
    say('joined', what, sum(plan['files'].values()))
CLI = f'{sys.executable} -m crocodil.cli'
THREADS = lambda n: {'OMP_NUM_THREADS': str(n), 'MKL_NUM_THREADS': str(n)}
def train(until, *more):
    minutes = max((until - now() - S['tail']) / 60, S['least'])
    cmd = f"{CLI} train base --preset {S['preset']} --data corpus --from record --set base_start=first/base/model --out run {' '.join('--set ' + x for x in (*S['set'], *more))} --minutes {minutes:.3f} {S['device']}"
    return end(sh(cmd, 'train.log'), 'train.log')
def main():
    (W / 'res').mkdir(exist_ok=True)
    join('libs')
    for z in (W / 'libs').glob('*.tar'): subprocess.run(['tar', 'xf', z, '-C', W / 'libs'])
    join('start'); join('first')
    tests = None
    if S['tests']:  # while the corpus arrives
        shutil.copytree(W / 'start', W / 'repo/src/crocodil/builtin', dirs_exist_ok=True)
        tests = sh(f"bash -c 'cd repo && PYTHONPATH=src:tests:{W}/libs {sys.executable} -m pytest -q -m gpu -p no:cacheprovider $(grep -lE \"mark.gpu|pytestmark.*gpu\" -r tests --include=*.py)'", 'tests.log', **THREADS(4))
    join('corpus')
    (W / 'corpus.ready').touch()
    judge = sh(f'{sys.executable} code/judge.py', 'judge.log') if S['judge_parts'] else None
    def evaluate(part, count):
        return [sh(f'{sys.executable} code/evals.py {k} {count} {part}', f'eval-{part}-{k}.log', **THREADS(4)) for k in range(count)]
    if S['early']:  # rows of the built-in model, before the training: beside it they make it three times slower
        if judge: end(judge, 'judge.log')
        early = evaluate('start', S['early'])
        for p in early:
            try: p.wait(max(S['until']['early'] - now(), 1)); say('ended', p.returncode)
            except subprocess.TimeoutExpired: p.terminate(); say('stopped')
    if train(S['until']['base']):
        for more in (['base_loop.num_accumulated=2'], ['base_loop.compile_blocks=false', 'base_loop.num_accumulated=2']):
            if now() > S['until']['base'] - 60: break
            shutil.rmtree(W / 'run', ignore_errors=True)
            if not train(S['until']['base'], *more): break
    if judge: end(judge, 'judge.log')
    if tests: end(tests, 'tests.log')
    end(sh(f'{sys.executable} code/keep.py', 'keep.log', CUDA_VISIBLE_DEVICES=''), 'keep.log'); (W / 'base.done').touch()
    evals = evaluate('base', S['late'])
    bound = sh(f"{CLI} reproduce likelihood --preset {S['protocol']} --model start --base base --data corpus {S['judge_option']} --length {S['length']} --out res/bound {S['device']}", 'bound.log', **THREADS(2))
    for p in (*evals, bound):
        try: p.wait(max(S['until']['rows'] - now(), 1)); say('ended', p.returncode)
        except subprocess.TimeoutExpired: p.terminate(); say('stopped')
    (W / 'all.done').touch(); say('ALL DONE')
main()
