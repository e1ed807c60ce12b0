# home.sh base | rows: into $OUT
cd /tmp/w
if [ "$1" = base ]; then while [ ! -f base.done ]; do sleep 1; done; tar cf - base | split -b 15000000 -d -a 2 - $OUT/base.tar.; fi
mkdir -p s; cp *.log s/; cp run-head/head/metrics.jsonl s/head-metrics.jsonl 2>/dev/null; tar czf $OUT/small.tgz s $(ls -d results/second res 2>/dev/null); ls -la $OUT; tail -n 3 drive.log; cat res/rows.txt 2>/dev/null
[ -d run-head/head/model ] && tar cf - run-head/run.json run-head/head/stage.json run-head/head/model | split -b 15000000 -d -a 2 - $OUT/head.tar.
