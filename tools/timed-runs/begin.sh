# begin.sh PACK: copy the tree, start the driver
mkdir -p /tmp/w/in /tmp/w/results /tmp/w/tree; date +%s > /tmp/w/t0
cp -r src /tmp/w/; cp -r results/second results/second-base /tmp/w/results/; for f in results/second-ablations results/second-priors; do [ -d $f ] && cp -r $f /tmp/w/results/; done; cp -r results/second/training /tmp/w/record
cp -r src tests pyproject.toml examples README.md docs /tmp/w/tree/
cp -r $1/code /tmp/w/; cp /tmp/w/code/*.sh /tmp/w/
cd /tmp/w; CROCODIL_COMMIT=$(cat code/commit) setsid nohup python code/drive.py > /tmp/w/drive.log 2>&1 < /dev/null &
nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
