"""The command line. Each command turns its options into typed values and calls the library.

Heavy modules are imported inside the commands, so that `crocodil --help` answers at once.
"""

from crocodil.cli import sample, complete, play, train, corpus, trim, reproduce, judges  # isort: skip  (order of the help)
from crocodil.cli.root import app, main

__all__ = ["app", "complete", "corpus", "judges", "main", "play", "reproduce", "sample", "train", "trim"]
