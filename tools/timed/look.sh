cd /tmp/w; echo t=$(( $(date +%s) - $(cat t0) )); nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader
tail -n ${1:-12} drive.log
for s in base; do f=$(ls run/$s/metrics.jsonl 2>/dev/null) && python - $f <<'P'
import json,sys
rows=[json.loads(l) for l in open(sys.argv[1])]
st=[r for r in rows if 'step_s' in r]; va=[r for r in rows if 'step_s' not in r]
if st:
    n=len(st); import statistics as s
    print(sys.argv[1], n, 'steps, eighths', [round(s.fmean(r['loss'] for r in st[i*n//8:(i+1)*n//8 or 1]),3) for i in range(8)] if n>=8 else '', 'median step', s.median(r['step_s'] for r in st[-300:]), 'sum', round(sum(r['step_s'] for r in st)), 'mfu', round(s.median(r['mfu'] for r in st[-300:]),3), 'norm', round(st[-1]['gradient_norm'],2))
for r in va[-1:]: print({k:round(v,3) for k,v in r.items() if 'top-1' not in k})
P
done
cat res/rows.txt 2>/dev/null | tail -40

