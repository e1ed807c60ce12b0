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
    tries = [['--set', 'distilled_loop.num_accumulated=2'], ['--set', 'distilled_loop.compile_blocks=false', '--set', 'distilled_loop.num_accumulated=2']] if stage == 'distilled' else [['--set', f'{stage}_loop.compile_blocks=false']] + ([['--set', 'live_draws=1'], ['--set', f'{stage}_loop.compile_blocks=false', '--set', 'live_draws=1']] if stage == 'conditional' else [])
    for more in tries:
        if not rc or now() > until - 60: break
        say('again with', more); shutil.rmtree(W / 'run' / stage, ignore_errors=True)
        minutes = max((until - now() - S['tail'][stage]) / 60, S['least'])
        rc = end(sh(cmd.rsplit('--minutes', 1)[0] + f"{' '.join(more)} --minutes {minutes:.3f} {S['device']}", log), log)
    return rc
def main():
    join('libs')
    for z in (W / 'libs').glob('*.tar'): subprocess.run(['tar', 'xf', z, '-C', W / 'libs'])
    draws = sh(f'{sys.executable} code/draws.py', 'draws.log')
    go_on = S.get('start')  # networks of an earlier run, without a base
    join('start' if go_on else 'trimmed')
    join('tea')
    join('corpus')
    end(draws, 'draws.log'); say((W / 'draws.log').read_text()[-200:])
    prior_only = S.get('prior_only')  # demasker and encoder stay those of the start
    if not go_on and train('base', S['until']['base'], S['causal']): say('BASE FAILED')
    judge = sh(f'{sys.executable} code/judge.py', 'judge.log')  # waits for the wheels of the judge; uses a CPU
    if prior_only:
        shutil.copytree(W / 'start', W / 'run/guided/model'); shutil.copy(W / 'record/run.json', W / 'run/run.json')
        if S['cached'] and end(sh(f"{CLI} train registers --preset {S['preset']} --data corpus --out run {' '.join('--set ' + x for x in S['set']['all'])} {S['device']}", 'registers.log'), 'registers.log'):
            say('REGISTERS FAILED'); S['set']['conditional'] += ['live_draws=4', 'conditional_loop.batch_size=512']
    else:
        warm = sh(f'bash code/warm.sh | cat', 'warm.log', **THREADS(4), CLI=CLI, ALL=' '.join('--set ' + x for x in S['set']['all']), COND=' '.join('--set ' + x for x in S['set']['conditional']), CAUSAL=S['causal'], START='yes' if go_on else '', DEVICE=S['device'], WAIT=str(S['warm_wait']))
        if train('guided', S['until']['guided'], *(['--from record --set guided_start=start'] if go_on else [])): say('GUIDED FAILED')
        say('warm rc', warm.poll()); subprocess.run(['pkill', '-9', '-f', 'out warm'])
    kept = sh(f'{sys.executable} code/keep.py keepg guided', 'keepg.log', CUDA_VISIBLE_DEVICES='')
    if train('conditional', S['until']['conditional']): say('CONDITIONAL FAILED')
    end(kept, 'keepg.log')
    if train('distilled', S['until']['distilled']): say('DISTILLED FAILED')
    kept = sh(f'{sys.executable} code/keep.py keepc conditional', 'keepc.log', CUDA_VISIBLE_DEVICES='')
    end(judge, 'judge.log')
    flags = S['export']
    end(sh(f'{CLI} export run --data corpus --out model --bits demasker=5,encoder=4,conditional=4 --without base --license apache-2.0 {flags}', 'export.log', CUDA_VISIBLE_DEVICES=''), 'export.log')
    say((W / 'export.log').read_text()[-300:]); (W / 'model.done').touch()
    calibrated = sh(f'{CLI} export run --data corpus --out final0 --calibrate 16 --bits demasker=5,encoder=4,conditional=4 --without base --license apache-2.0 {flags}', 'export2.log', CUDA_VISIBLE_DEVICES='', **THREADS(6))
    evals = [sh(f'{sys.executable} code/evals.py {k} {S["num_evals"]}', f'eval{k}.log', **THREADS(4)) for k in range(S['num_evals'])]
    end(sh(f'{CLI} export run --data corpus --out teacher --teachers --bits demasker=5,encoder=4,conditional=8 --without base --license apache-2.0 {S["export_teacher"]}', 'export-t.log', CUDA_VISIBLE_DEVICES='', **THREADS(3)), 'export-t.log'); (W / 'teacher.done').touch()
    while not (W / 'chosen.json').exists() and now() < S['until']['choice']: time.sleep(1)
    if not (W / 'chosen.json').exists():
        end(sh(f'{sys.executable} code/choose.py', 'choose.log'), 'choose.log')
    chosen = json.loads((W / 'chosen.json').read_text()); say('chosen', chosen)
    for e in evals:
        if e.poll() is None: e.kill()
    failed = end(calibrated, 'export2.log'); (W / 'final0.done').touch()
    end(sh(f'{sys.executable} code/finalize.py {"model" if failed else "final0"}', 'finalize.log'), 'finalize.log'); say((W / 'finalize.log').read_text()[-200:])
    rows = [sh(f'{MOST} {CLI} reproduce {S["experiments"]} --preset {S["protocol"]} --model final --run run --data corpus --judge {S["judge"]} --length {n} --out res/rows{n} {S["device"]}', f'rows{n}.log', **THREADS(6)) for n in S['lengths']]
    for p, n in zip(rows, S['lengths']):
        try: p.wait(max(S['until']['rows'] - now(), 1)); say('rows', n, 'rc', p.returncode)
        except subprocess.TimeoutExpired: p.terminate(); say('rows', n, 'stopped')
    say('ALL DONE')
main()
