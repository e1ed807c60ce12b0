"""Train base, guided, conditional; export; choose settings; rows. Every phase has an end in seconds after begin."""
import json, lzma, os, shutil, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
W = Path('/tmp/w'); IN = W / 'in'
T0 = int((W / 't0').read_text())
S = json.loads((W / 'code/settings.json').read_text())
ENV = {**os.environ, 'PYTHONPATH': f'{W}/src:{W}/libs', 'HF_HUB_OFFLINE': '1', 'CROCODIL_CACHE': f'{W}/cache', 'PYTHONUNBUFFERED': '1', 'TORCHINDUCTOR_CACHE_DIR': f'{W}/inductor'}
now = lambda: time.time() - T0
def say(*a): print(f'[{now():.0f}]', *a, flush=True)
def sh(cmd, log, **k):
    say('start', cmd[:150]); p = subprocess.Popen(cmd if '|' in cmd else 'exec ' + cmd, shell=True, env={**ENV, **k}, stdout=open(W / log, 'w'), stderr=subprocess.STDOUT, cwd=W); return p
def end(p, log):
    rc = p.wait(); say('end rc', rc, log, (W / log).read_text()[-300:].replace('\n', ' | ') if rc else ''); return rc
def need(*names):
    while not all((IN / n).exists() for n in names): time.sleep(0.3)
def unxz(pair):
    src, dst, offset = pair
    data = lzma.open(src).read()
    with open(dst, 'r+b') as f: f.seek(offset); f.write(data)
def join(what):
    need(f'{what}.json'); plan = json.loads((IN / f'{what}.json').read_text())  # files -> size; parts [file, offset, dst]
    need(*[p['part'] for p in plan['parts']])
    for name, size in plan['files'].items():
        (W / what / name).parent.mkdir(parents=True, exist_ok=True)
        with open(W / what / name, 'wb') as f: f.truncate(size)
    with ProcessPoolExecutor(16) as pool: list(pool.map(unxz, [(IN / p['part'], W / what / p['file'], p['offset']) for p in plan['parts']]))
    for p in plan['parts']: (IN / p['part']).unlink()
    say('joined', what, sum(plan['files'].values()))
CLI = f'{sys.executable} -m crocodil.cli'
PIN = lambda cores: f'taskset -c {cores}' if shutil.which('taskset') else ''
MOST, TWO = PIN('0-13'), PIN('14,15')
THREADS = lambda n: {'OMP_NUM_THREADS': str(n), 'MKL_NUM_THREADS': str(n)}  # processes beside each other must share the cores
def train(stage, until, *extra):
    minutes = max((until - now() - S['tail'][stage]) / 60, S['least'])
    log = f'train-{stage}.log'
    cmd = f"{CLI} train {stage} --preset {S['preset']} --data corpus --out run {' '.join(extra)} {' '.join('--set ' + x for x in S['set']['all'] + S['set'][stage])} --minutes {minutes:.3f} {S['device']}"
    rc = end(sh(cmd, log), log)
    tries = [['--set', f'{stage}_loop.compile_blocks=false']] + ([['--set', 'live_draws=1'], ['--set', f'{stage}_loop.compile_blocks=false', '--set', 'live_draws=1']] if stage == 'conditional' else [])
    for more in tries:
        if not rc or now() > until - 60: break
        say('again with', more); shutil.rmtree(W / 'run' / stage, ignore_errors=True)
        minutes = max((until - now() - S['tail'][stage]) / 60, S['least'])
        rc = end(sh(cmd.rsplit('--minutes', 1)[0] + f"{' '.join(more)} --minutes {minutes:.3f} {S['device']}", log), log)
    return rc
def main():
    join('libs')
    for z in (W / 'libs').glob('*.tar'): subprocess.run(['tar', 'xf', z, '-C', W / 'libs'])
    join('start'); join('jbm'); join('corpus')
    judge = sh(f'{sys.executable} code/judge.py', 'judge.log')
    (W / 'run').mkdir(exist_ok=True); shutil.copytree(W / 'start', W / 'run/guided/model'); shutil.copy(W / 'record/run.json', W / 'run/run.json')
    if end(sh(f"{CLI} train registers --preset {S['preset']} --data corpus --out run {' '.join('--set ' + x for x in S['set']['all'])}", 'registers.log'), 'registers.log'): say('REGISTERS FAILED')
    say(subprocess.run('find run -name registers.npy | xargs ls -la', shell=True, cwd=W, capture_output=True, text=True).stdout)
    arms = {n: sh(f'{sys.executable} code/dmd.py {n} {S["until"]["train"]} {a}', f'dm-{n}.log', **THREADS(4)) for n, a in S['arms'].items()}
    for n, p in arms.items(): end(p, f'dm-{n}.log'); say((W / f'dm-{n}.log').read_text()[-300:])
    end(judge, 'judge.log')
    evals = [sh(f'{sys.executable} code/evals.py {k} {S["num_evals"]}', f'eval{k}.log', **THREADS(4)) for k in range(S['num_evals'])]
    for e in evals:
        try: e.wait(max(S['until']['rows'] - now(), 1))
        except subprocess.TimeoutExpired: e.kill(); say('an evaluation was stopped')
    say('ALL DONE')
main()
