"""keep.py OUT STAGE...: copies of the stages' networks in bfloat16, with all their small files."""
import shutil, sys, torch
from pathlib import Path
from safetensors import safe_open
from safetensors.torch import save_file
W = Path('/tmp/w'); out = W / sys.argv[1]
for stage in sys.argv[2:]:
    src = W / 'run' / stage
    for f in [*(src / 'model').rglob('*'), *src.glob('*.json*')]:
        if not f.is_file(): continue
        dst = out / f.relative_to(W / 'run'); dst.parent.mkdir(parents=True, exist_ok=True)
        if f.suffix != '.safetensors': shutil.copy(f, dst); continue
        with safe_open(f, 'pt') as g:
            tensors = {k: g.get_tensor(k) for k in g.keys()}; meta = g.metadata()
        save_file({k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in tensors.items()}, dst, metadata=meta)
(W / f'{sys.argv[1]}.done').touch()
print('kept', sum(f.stat().st_size for f in out.rglob('*') if f.is_file()))
