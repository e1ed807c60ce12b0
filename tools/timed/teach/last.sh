# last.sh: small files of everything into $OUT
cd /tmp/w; mkdir -p s; for d in final modela modelb modelc; do mkdir -p s/$d; find $d -maxdepth 3 -type f -size -900k -exec cp --parents {} s/ \; ; done
for v in a b c; do mkdir -p s/run$v/guided; cp run$v/guided/*.json run$v/guided/*.jsonl s/run$v/guided/ 2>/dev/null; cp run$v/*.json s/run$v/ 2>/dev/null; done
for t in t1.0 t1.4 t2.0 f1.0 f1.4 f2.0; do mkdir -p s/$t; cp $t/teacher.json s/$t/; done
cp *.log chosen.json s/ 2>/dev/null; cp -r res s/
tar czf $OUT/small-$1.tgz s; ls -la $OUT; rm -rf s; bash look.sh 8
