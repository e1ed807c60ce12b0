# home.sh model | rows: into $OUT
cd /tmp/w
if [ "$1" = model ]; then while [ ! -f model.done ]; do sleep 1; done; tar cf - model run/*.json run/*/stage.json | split -b 15000000 -d -a 2 - $OUT/model.tar.; fi
mkdir -p s; cp *.log s/; cp run/*/metrics.jsonl s/ 2>/dev/null; tar czf $OUT/small.tgz s $(ls -d res 2>/dev/null); ls -la $OUT; tail -n 3 drive.log; cat res/rows.txt 2>/dev/null
