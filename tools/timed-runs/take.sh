# take.sh PACK: move a pack's files in, then tell the driver
for f in $1/*; do [ -f "$f" ] && cp "$f" /tmp/w/in/.tmp && mv /tmp/w/in/.tmp /tmp/w/in/$(basename $f); done
echo t=$(( $(date +%s) - $(cat /tmp/w/t0) )) $(ls /tmp/w/in | wc -l) files; tail -2 /tmp/w/drive.log
