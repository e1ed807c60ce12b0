import torch
from pathlib import Path
W = Path('/tmp/w'); s = torch.load(W / 'jb.pt', map_location='cpu', weights_only=True)
torch.save({k: v.bfloat16() for k, v in s.items() if k != 'dem.backbone.embed.weight'}, W / 'jb16.pt')
