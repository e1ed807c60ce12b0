# homeb.sh K: four of the pieces of jb16.pt into $OUT, once it is whole or 1500 s have passed
cd /tmp/w; while [ ! -f jb.done ] && [ $(( $(date +%s) - $(cat t0) )) -lt 1505 ]; do sleep 1; done
[ -f jb.00 ] || split -b 15000000 -d -a 2 jb16.pt jb.
for i in 0 1 2 3; do f=jb.0$(( $1 * 4 + i )); [ -f $f ] && cp $f $OUT/; done; ls -la jb16.pt $OUT; tail -n 3 drive.log
