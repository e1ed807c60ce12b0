"""Teacher texts, then three demaskers side by side: without them (a), with all (b), with those that parse (c). Then choice and rows."""
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
    say('start', cmd[:150]); p = subprocess.Popen('exec ' + cmd, shell=True, env={**ENV, **k}, stdout=open(W / log, 'w'), stderr=subprocess.STDOUT, cwd=W); return p
def end(p, log, until=None):
    try: rc = p.wait(None if until is None else max(until - now(), 1))
    except subprocess.TimeoutExpired: p.kill(); say('KILLED', log); return -9
    say('end rc', rc, log, (W / log).read_text()[-300:].replace('\n', ' | ') if rc else ''); return rc
def need(*names):
    while not all((IN / n).exists() for n in names): time.sleep(0.3)
def unxz(pair):
    src, dst, offset = pair
    data = lzma.open(src).read()
    with open(dst, 'r+b') as f: f.seek(offset); f.write(data)
def join(what):
    need(f'{what}.json'); plan = json.loads((IN / f'{what}.json').read_text())
    need(*[p['part'] for p in plan['parts']])
    for name, size in plan['files'].items():
        (W / what / name).parent.mkdir(parents=True, exist_ok=True)
        with open(W / what / name, 'wb') as f: f.truncate(size)
    with ProcessPoolExecutor(16) as pool: list(pool.map(unxz, [(IN / p['part'], W / what / p['file'], p['offset']) for p in plan['parts']]))
    for p in plan['parts']: (IN / p['part']).unlink()
    say('joined', what, sum(plan['files'].values()))
CLI = f'{sys.executable} -m crocodil.cli'
THREADS = lambda n: {'OMP_NUM_THREADS': str(n), 'MKL_NUM_THREADS': str(n)}
def teach(noise, seed, compiled):
    minutes = max((S['until']['teach'] - 12 - now()) / 60, 0.3)
    return sh(f"{CLI} teach --model start --out t{noise} --count {S['teach_count']} --seed {seed} --calls {S['teach_calls']} --register-noise {noise} --batch-size {S['teach_batch']} --max-minutes {minutes:.2f} {compiled} {S['device']}", f'teach{noise}.log', **THREADS(4))
def train(v, folders, rate):
    texts = json.dumps(folders).replace(' ', '')
    return sh(f"{CLI} train guided --preset {S['preset']} --data corpus --out run{v} --from record --set guided_start=start --set 'teacher_texts={texts}' --set teacher_rate={rate} {' '.join('--set ' + x for x in S['set']['all'] + S['set']['guided'])} {S['device']}", f'train-{v}.log', **THREADS(5))
def export(v, out, flags):
    target = W / f'run{v}/conditional/model/denoiser'
    if not target.exists(): shutil.copytree(W / 'start/conditional', target)
    return sh(f'{CLI} export run{v} --data corpus --out {out} --bits demasker=5,encoder=4,conditional=4 --without base --license apache-2.0 {flags}', f'export-{out}.log', CUDA_VISIBLE_DEVICES='', **THREADS(5))
def main():
    join('libs')
    for z in (W / 'libs').glob('*.tar'): subprocess.run(['tar', 'xf', z, '-C', W / 'libs'])
    join('start')
    judge = sh(f'{sys.executable} code/judge.py', 'judge.log', **THREADS(2))
    teachers = {n: teach(n, s, S['compiled']) for n, s in S['teach']}
    join('corpus')
    subprocess.run([sys.executable, 'code/dummy.py'], env=ENV, cwd=W)
    a = train('a', ['dummy'], 0.0)
    for n, s in S['teach']:
        if end(teachers[n], f'teach{n}.log', S['until']['teach'] + 25) and now() < S['until']['teach'] - 60:
            say('again, not compiled'); teachers[n] = teach(n, s + 10, ''); end(teachers[n], f'teach{n}.log', S['until']['teach'] + 25)
    end(sh(f'{sys.executable} code/filter.py', 'filter.log', **THREADS(1)), 'filter.log'); say((W / 'filter.log').read_text()[-400:])
    have = [n for n, _ in S['teach'] if (W / f't{n}').exists()]
    b, c = train('b', [f't{n}' for n in have], S['rate']), train('c', [f'f{n}' for n in have], S['rate'])
    jobs = {'a': a, 'b': b, 'c': c}
    exports = {}
    while jobs and now() < S['until']['train']:
        for v, p in list(jobs.items()):
            if p.poll() is not None:
                del jobs[v]; end(p, f'train-{v}.log')
                if not p.returncode: exports[v] = export(v, f'model{v}', S['export'])
        time.sleep(1)
    for v, p in jobs.items(): say('TOO LATE', v); p.kill()
    for v, p in exports.items(): end(p, f'export-model{v}.log'); say((W / f'export-model{v}.log').read_text()[-200:])
    for v in exports: (W / f'model{v}.done').touch()
    end(judge, 'judge.log')
    evals = [sh(f'{sys.executable} code/evals.py {k} {S["num_evals"]}', f'eval{k}.log', **THREADS(4)) for k in range(S['num_evals'])]
    while now() < S['until']['choice'] and any(e.poll() is None for e in evals): time.sleep(1)
    for e in evals:
        if e.poll() is None: e.kill()
    end(sh(f'{sys.executable} code/choose.py', 'choose.log'), 'choose.log')
    chosen = json.loads((W / 'chosen.json').read_text()); say('chosen', chosen)
    end(export(chosen['who'][-1], 'final', chosen['flags']), 'export-final.log'); (W / 'final.done').touch()
    rows = [sh(f'{CLI} reproduce {S["experiments"]} --preset {S["protocol"]} --model final --run run{chosen["who"][-1]} --data corpus --judge {S["judge"]} --length {n} --out res/rows{n} {S["device"]}', f'rows{n}.log', **THREADS(6)) for n in S['lengths']]
    for p, n in zip(rows, S['lengths']):
        try: p.wait(max(S['until']['rows'] - now(), 1)); say('rows', n, 'rc', p.returncode)
        except subprocess.TimeoutExpired: p.terminate(); say('rows', n, 'stopped')
    say('ALL DONE')
main()
