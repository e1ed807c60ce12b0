# home.sh base | rows: into $OUT
cd /tmp/w
if [ "$1" = base ]; then while [ ! -f base.done ]; do sleep 1; done; tar cf - base | split -b 15000000 -d -a 2 - $OUT/base.tar.; fi
mkdir -p s; cp *.log s/; tar czf $OUT/small.tgz s $(ls -d results/second parts 2>/dev/null); ls -la $OUT; tail -n 3 drive.log; tail -qc 300 rows*.log
