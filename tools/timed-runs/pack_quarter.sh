# pack_quarter.sh [paper]: parts of corpora and libraries are those of next6 (prepare.sh); the built-in model and the base are packed from REPO. Writes settings.json.
set -e
cd $KEEP; N=quarter; mkdir -p $N/parts; ln -sf $KEEP/next6/parts/libs* $KEEP/next6/parts/corpus* $KEEP/next6/parts/fresh* $N/parts/
mkdir -p $N/first/base/model/demasker; S=$REPO/results/second-base; cp $S/run.json $N/first/; cp $S/config.json $S/checksums.json $S/model.safetensors $N/first/base/model/demasker/; cp $N/base-stage.json $N/first/base/stage.json
$REPO/.venv/bin/python $N/pack.py start $REPO/src/crocodil/builtin $N/parts
$REPO/.venv/bin/python $N/pack.py first $KEEP/$N/first $N/parts
(cd $N; python3 make_settings.py $1)
