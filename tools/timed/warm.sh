# warm.sh: networks of the same shapes, one step each, then stage conditional for 8 steps: fills the compiler's cache
cd /tmp/w; sleep $WAIT
small="--set base_loop.batch_size=2 --set base_loop.num_accumulated=1 --set base_loop.num_steps=1 --set base_loop.compile_blocks=false --set guided_loop.batch_size=2 --set guided_loop.num_accumulated=1 --set guided_loop.num_steps=1 --set guided_loop.compile_blocks=false"
from="--from record --set guided_start=start"; [ -z "$START" ] && from= && \
$CLI train base --preset small --data corpus --out warm $CAUSAL $ALL $small $DEVICE
$CLI train guided --preset small --data corpus --out warm $from $ALL $small $DEVICE && \
$CLI train conditional --preset small --data corpus --out warm $ALL $small $COND --set conditional_loop.num_steps=9 $DEVICE
echo warm $? t=$(( $(date +%s) - $(cat t0) ))
