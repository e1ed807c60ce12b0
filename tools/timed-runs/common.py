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
