"""One timed run: the base goes on until it has the compute of the model, then everything of a protocol file at one length.

Folders below W (/tmp/w): in/ (parts that arrive), code/ (this, settings.json, protocol.json), src/, start/ (the built-in model), record/
(results/second/training), first/ (run.json and base/model/demasker of the base to go on from), corpus/, fresh/, run/ (the base), results/.
"""
import json, lzma, os, shutil, signal, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
W = Path(os.environ.get('W', '/tmp/w')); IN = W / 'in'
T0 = int((W / 't0').read_text())
S = json.loads((W / 'code/settings.json').read_text())
ENV = {**os.environ, 'PYTHONPATH': f'{W}/src:{W}/libs', 'HF_HUB_OFFLINE': '1', 'CROCODIL_CACHE': S.get('cache') or f'{W}/cache', 'PYTHONUNBUFFERED': '1', 'TORCHINDUCTOR_CACHE_DIR': f'{W}/inductor', 'W': str(W)}
CLI = f'{sys.executable} -m crocodil.cli'
THREADS = lambda n: {'OMP_NUM_THREADS': str(n), 'MKL_NUM_THREADS': str(n)}
now = lambda: time.time() - T0
def say(*a): print(f'[{now():.0f}]', *a, flush=True)
def sh(cmd, log, **k):
    say('start', cmd[:300]); return subprocess.Popen('exec ' + cmd, shell=True, env={**ENV, **k}, stdout=open(W / log, 'a'), stderr=subprocess.STDOUT, cwd=W)
def end(p, log):
    rc = p.wait(); say('end rc', rc, log, (W / log).read_text()[-300:].replace('\n', ' | ')); return rc
def need(*names):
    while not all((IN / n).exists() for n in names): time.sleep(0.2)
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
def train(until, *more):
    minutes = max((until - now() - S['tail']) / 60, S['least'])
    cmd = f"{CLI} train base --preset {S['preset']} --data corpus --from record --set base_start=first/base/model --out run {' '.join('--set ' + x for x in (*S['set'], *more))} --minutes {minutes:.3f} {S['device']}"
    return end(sh(cmd, 'train.log'), 'train.log')
def main():
    join('libs')
    for z in (W / 'libs').glob('*.tar'): subprocess.run(['tar', 'xf', z, '-C', W / 'libs'])
    judge = sh(f'{sys.executable} code/judge.py', 'judge.log', CUDA_VISIBLE_DEVICES='') if S['judge_parts'] else None
    join('start'); join('first'); join('corpus')
    if S['train']:
        if train(S['until']['base']):
            for more in (['base_loop.num_accumulated=2'], ['base_loop.compile_blocks=false', 'base_loop.num_accumulated=2']):
                if now() > S['until']['base'] - 60: break
                shutil.rmtree(W / 'run', ignore_errors=True)
                if not train(S['until']['base'], *more): break
        end(sh(f'{sys.executable} code/keep.py', 'keep.log', CUDA_VISIBLE_DEVICES=''), 'keep.log')
    else:
        shutil.copytree(W / 'first/base/model/demasker', W / 'base'); shutil.copy(W / 'first/run.json', W / 'base')
    (W / 'results').mkdir(exist_ok=True); shutil.copytree(W / 'base', W / 'results/second-base', dirs_exist_ok=True)
    (W / 'base.done').touch()
    join('fresh')
    if judge: end(judge, 'judge.log')
    base_run = 'run' if S['train'] else 'first'
    def options(length): return f"--protocol code/protocol.json --length {length} --model start --base results/second-base --run record --base-run {base_run} --data corpus --test fresh {S['device']} {S['compiled']}"
    def stop(procs):
        for p in procs:
            if p.poll() is None: p.send_signal(signal.SIGINT)
        for p in procs:
            try: p.wait(15)
            except subprocess.TimeoutExpired: p.kill()
    def until(procs, t):
        for p in procs:
            try: p.wait(max(t - now(), 0.1)); say('ended', p.returncode)
            except subprocess.TimeoutExpired: say('stopped'); stop(procs)
    def merge():
        """Rows of the processes, one after the other, into the folder that the last command completes."""
        for name in ('reference', 'sweep', 'generation'):
            seen = set()
            out = W / f'results/second/{name}.jsonl'; out.parent.mkdir(parents=True, exist_ok=True)
            lines = out.read_text().splitlines() if out.exists() else []
            for m in METHODS:
                f = W / f'parts/{m}/{name}.jsonl'
                if f.exists(): lines += f.read_text().splitlines()
            if name == 'reference': lines = list({json.loads(l)['length']: l for l in lines}.values())
            if lines: out.write_text(''.join(l + '\n' for l in dict.fromkeys(lines)))
    METHODS = ('base', 'conthendisc', 'conwithindisc')
    for experiments, length, parallel in S['experiments']:
        if now() > S['until']['rows'] - 10: break
        if parallel:
            for m in METHODS:  # what an earlier length or session measured is there already
                for f in (W / 'results/second').glob('*.jsonl'): (W / f'parts/{m}').mkdir(parents=True, exist_ok=True); shutil.copy(f, W / f'parts/{m}')
            procs = [sh(f"{sys.executable} code/rows.py {m} parts/{m} {parallel} {options(length)}", f'rows-{m}.log', **THREADS(4)) for m in METHODS]
            until(procs, S['until']['rows']); merge(); say('merged')
        p = sh(f"{CLI} reproduce {experiments} {options(length)} --out results/second", 'rows.log')
        until([p], S['until']['rows'])
    (W / 'all.done').touch(); say('ALL DONE')
main()
