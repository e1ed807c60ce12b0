"""rows.py METHOD OUT ARGS...: `crocodil reproduce` for one method alone, so that several processes share the GPU."""
import sys
import crocodil.reproduce.experiments.generation as generation
from crocodil.cli import app
from crocodil.pipeline import Method
method = Method(sys.argv[1])
generation.methods = lambda pipe: [method]
app(['reproduce', *sys.argv[3:], '--out', sys.argv[2]], standalone_mode=True)
