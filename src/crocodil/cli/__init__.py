"""The command line. Each command turns its options into typed values and calls the library.

Heavy modules are imported inside the commands, so that `crocodil --help` answers at once.
"""

from crocodil.cli import sample, play, train, corpus, trim, reproduce, judges  # isort: skip  (this is the order of the help)
from crocodil.cli.root import app, main

__all__ = ["app", "corpus", "judges", "main", "play", "reproduce", "sample", "train", "trim"]
