# home.sh model K | rows: into $OUT. The model comes in parts of 15 MB, four a call: K = 0, 1
cd /tmp/w
if [ "$1" = model ]; then
    while [ ! -f model.done ]; do sleep 1; done
    [ -f parts/model.00 ] || { mkdir -p parts; tar cf - model $(ls run/*.json run/*/stage.json) | split -b 15000000 -d -a 2 - parts/model.; }
    ls parts/* | tail -n +$((4 * $2 + 1)) | head -4 | xargs -I{} cp {} $OUT/
fi
mkdir -p s; cp *.log s/; cp run/*/metrics.jsonl s/ 2>/dev/null; tar czf $OUT/small.tgz s results/second/*.jsonl results/second/conditions.json; ls -la parts $OUT; tail -n 3 drive.log; wc -l results/second/{sweep,generation}.jsonl
