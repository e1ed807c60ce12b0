# home.sh model K | rows: into $OUT. The model comes in parts of 15 MB, four a call: K = 0, 1
cd /tmp/w
if [ "$1" = model ]; then
    while [ ! -f model.done ]; do sleep 1; done
    [ -f parts/model.00 ] || { mkdir -p parts; tar cf - model $(ls run/*.json run/*/stage.json) | split -b 15000000 -d -a 2 - parts/model.; }
    ls parts/* | tail -n +$((4 * $2 + 1)) | head -4 | xargs -I{} cp {} $OUT/
fi
mkdir -p s; cp *.log s/; for f in run*/*/metrics.jsonl run*/*/stage.json; do mkdir -p s/$(dirname $f); cp $f s/$f; done 2>/dev/null
tar czf $OUT/small.tgz s results/*/*.jsonl results/*/*.json; ls parts $OUT; tail -n 3 drive.log | cut -c1-300; wc -l results/*/*.jsonl | tail -40
