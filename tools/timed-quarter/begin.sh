# begin.sh PACK: copy the tree, start the driver
mkdir -p /tmp/w/in /tmp/w/results; date +%s > /tmp/w/t0
cp -r src /tmp/w/; cp -r results/second results/second-base /tmp/w/results/; cp -r results/second/training /tmp/w/record; cp -r $1/code /tmp/w/; cp /tmp/w/code/*.sh /tmp/w/
cd /tmp/w; CROCODIL_COMMIT=$(cat code/commit) setsid nohup python code/drive.py > /tmp/w/drive.log 2>&1 < /dev/null &
nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
