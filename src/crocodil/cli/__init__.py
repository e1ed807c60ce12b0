"""The command line: verbs, each of which turns its options into typed values and calls the library.

Heavy modules are imported inside the verbs, so that `crocodil --help` answers at once.
"""

from crocodil.cli import corpus, judges, reproduce, sample, train
from crocodil.cli.root import app, main

__all__ = ["app", "corpus", "judges", "main", "reproduce", "sample", "train"]
