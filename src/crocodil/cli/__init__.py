"""The command line. Each command turns its options into typed values and calls the library.

Heavy modules are imported inside the commands, so that `crocodil --help` answers at once.
"""

# The order of the help:
# isort: off
from crocodil.cli import (
    sample,
    complete,
    play,
    train,
    run_tables,
    exporting,
    corpus,
    trim,
    reproduce,
    judges,
)

# isort: on
from crocodil.cli.root import app, main

__all__ = [
    "app",
    "complete",
    "corpus",
    "exporting",
    "judges",
    "main",
    "play",
    "reproduce",
    "run_tables",
    "sample",
    "train",
    "trim",
]
