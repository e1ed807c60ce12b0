"""finalize.py SRC: SRC with the chosen settings, as final."""
import json, shutil, sys
from dataclasses import replace
from pathlib import Path
from crocodil.checkpoints.checksums import write_checksums
from crocodil.pipeline.settings import read_settings, to_json
src, out = Path(sys.argv[1]), Path('final'); flags = json.loads(Path('chosen.json').read_text())['flags'].split()
value = lambda name: flags[flags.index(name) + 1]
shutil.copytree(src, out)
s = read_settings(out / 'crocodil.json')
s = replace(s, drawing=replace(s.drawing, prior_steps=int(value('--prior-steps')), refresh_steps=int(value('--refresh-steps')), register_noise=float(value('--register-noise'))))
(out / 'crocodil.json').write_text(json.dumps(to_json(s), indent=2) + '\n'); (out / 'checksums.json').unlink(); write_checksums(out)
print('final from', src, s.drawing)
