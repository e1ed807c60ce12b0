# last.sh: small files of everything into $OUT
cd /tmp/w; mkdir -p s; for d in final final0 model teacher; do mkdir -p s/$d; find $d -maxdepth 3 -type f -size -900k -exec cp --parents {} s/ \; ; done
for s in base guided conditional distilled; do mkdir -p s/run/$s; cp run/$s/*.json run/$s/*.jsonl s/run/$s/ 2>/dev/null; done; cp run/*.json s/run/ 2>/dev/null
cp *.log chosen.json before.json ja.json jb.json s/ 2>/dev/null; cp -r res s/
tar czf $OUT/small-$1.tgz s; ls -la $OUT; rm -rf s; bash look.sh 8
