# wait.sh T: until T seconds after begin, then look
n=$(( $1 - $(date +%s) + $(cat /tmp/w/t0) )); [ $n -gt 0 ] && sleep $n; bash /tmp/w/look.sh $2
