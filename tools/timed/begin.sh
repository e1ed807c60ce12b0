# begin.sh PACK: copy the tree, start the driver
mkdir -p /tmp/w/in /tmp/w/res /tmp/w/repo; date +%s > /tmp/w/t0
cp -r src /tmp/w/; cp -r results/second/training /tmp/w/record; cp -r src tests pyproject.toml docs examples benchmarks README.md /tmp/w/repo/
cp -r $1/code /tmp/w/; cp /tmp/w/code/*.sh /tmp/w/
cp -r /tmp/w/src /tmp/w/src2; cp /tmp/w/code/head_llada.py /tmp/w/src2/crocodil/models/llada.py; cp /tmp/w/code/head_causal_head.py /tmp/w/src2/crocodil/models/causal_head.py
cd /tmp/w; setsid nohup python code/drive.py > /tmp/w/drive.log 2>&1 < /dev/null &
nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
