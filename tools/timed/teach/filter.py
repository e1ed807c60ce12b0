"""Copies of the folders of teacher texts with those that parse, as `crocodil teach --keep parses` keeps them."""
import json, torch, sys
from multiprocessing import Pool
from pathlib import Path
from crocodil.metrics import parses_as_python, parses_without_its_end
from crocodil.text.tokenizer import Tokenizer
from crocodil.training.teacher_texts import TeacherTexts, read_about, write_teacher_texts
def parses(job): text, ends = job; return (parses_as_python if ends else parses_without_its_end)(text)
if __name__ == '__main__':
    W = Path('.'); tok = Tokenizer.load(W / 'start/tokenizer.json')
    for n, _ in json.loads((W / 'code/settings.json').read_text())['teach']:
        d = W / f't{n}'
        if not d.exists(): print(n, 'missing'); continue
        t = TeacherTexts(d); tokens = t.tokens
        ends = (tokens == tok.special.eos).any(axis=1).tolist()
        texts = [tok.decode(ids) for ids in tokens.tolist()]
        with Pool(12) as pool: kept = torch.tensor(pool.map(parses, list(zip(texts, ends)), chunksize=64))
        whole = sum(map(parses_as_python, texts[:2000])) / min(2000, len(texts))
        write_teacher_texts(W / f'f{n}', [torch.from_numpy(tokens)[kept]], [torch.from_numpy(t.registers)[kept]], {**read_about(d), 'keep': 'parses', 'texts': int(kept.sum())})
        print(f'noise {n}: {len(texts)} texts, {int(kept.sum())} kept, whole parses {whole:.3f}, have an end {sum(ends)/len(ends):.3f}', flush=True)
