# begin.sh PACK: copy the tree, start the driver
mkdir -p /tmp/w/in; date +%s > /tmp/w/t0
cp -r src benchmarks /tmp/w/; cp -r results/second/training /tmp/w/record; mkdir -p /tmp/w/results; cp -r results/second /tmp/w/results/; cp -r $1/code /tmp/w/; cp /tmp/w/code/*.sh /tmp/w/
cd /tmp/w; setsid nohup python code/drive.py > /tmp/w/drive.log 2>&1 < /dev/null &
nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
