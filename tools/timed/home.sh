# home.sh: the base in pieces of 15 MB, and small files, into $OUT
cd /tmp/w; while [ ! -f base.done ]; do sleep 1; done
tar cf - base | split -b 15000000 -d -a 2 - $OUT/base.tar.
mkdir -p s; cp *.log s/; cp -r res s/; tar czf $OUT/small.tgz s; ls -la $OUT; tail -n 3 drive.log; cat res/rows.txt
