"""After the harvest: trim SmolLM2's vocabulary on the texts that `trim --data CORPUS` would read, then finish the corpus."""
import json, sys, time, subprocess
from dataclasses import replace
from pathlib import Path
import numpy as np
from crocodil.corpus.build import build, TRAIN, run_harvest
from crocodil.corpus.harvest import read_documents
from crocodil.corpus.order import Order
from crocodil.corpus.selection import catalogue, select
from crocodil.corpus.known import known_documents
from crocodil.presets import corpora
OUT = Path('CORPUS/c12k'); T = Path('CORPUS/trimmed')
def main():
    recipe = replace(corpora.python_wheels(), tokenizer=None, vocab_size=8192)
    work = OUT / 'work'
    dirs = run_harvest(recipe, work, num_processes=4)
    t = time.time()
    docs = catalogue(dirs, work / 'signatures.bin'); print('catalogue', time.time() - t, flush=True)
    sel = select(docs, recipe, known_documents(recipe.against, work)); print('select', time.time() - t, flush=True)
    inside = np.flatnonzero(sel.split == TRAIN)
    order = Order(len(inside), 'texts').at(np.arange(len(inside)))
    left, chosen = 60_000_000, []
    for n in order:
        chosen.append(inside[n]); left -= int(docs.chars[inside[n]])
        if left <= 0: break
    mask = np.zeros(len(sel.split), bool); mask[chosen] = True
    with open('CORPUS/sample.jsonl', 'w') as f:
        for unit, d in enumerate(dirs):
            here = mask[docs.unit == unit]
            if here.any():
                for doc, ok in zip(read_documents(d), here, strict=True):
                    if ok: f.write(json.dumps({'text': doc.text}) + '\n')
    print('sample', mask.sum(), time.time() - t, flush=True)
    if not T.exists():
        subprocess.run([sys.executable, '-m', 'crocodil.cli', 'trim', str(Path.home() / '.cache/crocodil/judges/smollm2-135m'), '--data', 'CORPUS/sample.jsonl', '--out', str(T), '--size', '12288'], check=True)
    print('trimmed', time.time() - t, flush=True)
    recipe = replace(recipe, tokenizer=T / 'tokenizer.json')
    (work / 'recipe').write_text(recipe.corpus_fingerprint())
    build(recipe, OUT, num_processes=2)
    print('built', time.time() - t, flush=True)
if __name__ == '__main__': main()
