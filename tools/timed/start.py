"""start.py FOLDER: networks that were kept in bfloat16 become float32 again, with new checksums."""
import sys, torch
from pathlib import Path
from safetensors import safe_open
from safetensors.torch import save_file
from crocodil.checkpoints.checksums import write_checksums
for f in Path(sys.argv[1]).rglob('model.safetensors'):
    with safe_open(f, 'pt') as g: tensors = {k: g.get_tensor(k) for k in g.keys()}; meta = g.metadata()
    save_file({k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}, f, metadata=meta); write_checksums(f.parent)
print('ready')
