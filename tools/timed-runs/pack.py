"""pack.py WHAT SRC OUT [names...]: cut files into lzma parts of 16 MB of input and a plan WHAT.json."""
import json, lzma, sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
CH = 16 << 20
F = [{"id": lzma.FILTER_LZMA2, "preset": 1, "lc": 3, "lp": 1, "pb": 1}]
def one(job):
    src, offset, out = job
    with open(src, 'rb') as f: f.seek(offset); data = f.read(CH)
    out.write_bytes(lzma.compress(data, filters=F)); return out.stat().st_size
def main():
    what, src, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]); out.mkdir(parents=True, exist_ok=True)
    files = [f for f in sorted(src.rglob('*')) if f.is_file() and 'work' not in f.relative_to(src).parts and f.name != '.lock']
    if sys.argv[4:]: files = [src / n for n in sys.argv[4:]]
    jobs, parts, sizes = [], [], {}
    for f in files:
        name, size = str(f.relative_to(src)), f.stat().st_size; sizes[name] = size
        for i, offset in enumerate(range(0, size, CH)):
            part = f'{what}.{len(parts):03}.xz'; parts.append(dict(part=part, file=name, offset=offset)); jobs.append((f, offset, out / part))
    with ProcessPoolExecutor(2) as pool: total = sum(pool.map(one, jobs))
    (out / f'{what}.json').write_text(json.dumps(dict(files=sizes, parts=parts)))
    print(what, len(parts), 'parts', total / 1e6, 'MB of', sum(sizes.values()) / 1e6)
main()
