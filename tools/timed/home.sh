# home.sh FOLDER NETWORK [T]: a tar of /tmp/w/FOLDER/NETWORK and the small files beside it, in pieces of 15 MB, into $OUT, once FOLDER is whole or T seconds have passed
cd /tmp/w; while [ ! -f $1.done ] && [ $(( $(date +%s) - $(cat t0) )) -lt ${3:-0} ]; do sleep 1; done
tar cf - $1/$2 $1/*.json $1/*.md | split -b 15000000 -d -a 2 - $OUT/$1.tar.
for n in demasker encoder conditional; do cmp start/$n/model.safetensors $1/$n/model.safetensors && echo same $n; done
ls -la $OUT; echo t=$(( $(date +%s) - $(cat t0) )); tail -n 2 drive.log
