# home.sh FOLDER FROM TO [T]: pieces FROM..TO of 15 MB of a tar of /tmp/w/FOLDER into $OUT, once FOLDER is whole or T seconds have passed
cd /tmp/w; while [ ! -f $1.done ] && [ $(( $(date +%s) - $(cat t0) )) -lt ${4:-0} ]; do sleep 1; done
[ -f $1.parts/done ] || { mkdir -p $1.parts; tar cf - $1 | split -b 15000000 -d -a 2 - $1.parts/$1.tar.; touch $1.parts/done; }
for i in $(seq $2 $3); do f=$1.parts/$1.tar.$(printf %02d $i); [ -f $f ] && cp $f $OUT/; done
echo $1 $(ls $1.parts | wc -l) t=$(( $(date +%s) - $(cat t0) )); tail -n 2 drive.log
