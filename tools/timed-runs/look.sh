cd /tmp/w; echo t=$(( $(date +%s) - $(cat t0) )); nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null
tail -n ${1:-12} drive.log; tail -c 600 train.log 2>/dev/null; tail -qc 250 rows*.log 2>/dev/null; wc -l parts/*/*.jsonl results/second/*.jsonl 2>/dev/null
python - <<'P'
import json,glob
for n in ("sweep","generation"):
    try: rows=[json.loads(l) for l in open(f'results/second/{n}.jsonl')]
    except Exception: continue
    for r in rows[-8:]:
        print(n, r.get('method'), r.get('calls'), {k:r.get(k) for k in ('rule','temperature','top_p','crop','pace','corrector','num_registers','register_noise','curve') if k in r}, {k:round(r[k],3) for k in ('mauve','gen_ppl','entropy','distinct_2','parse_share','flop_nfe') if isinstance(r.get(k),float)})
P
