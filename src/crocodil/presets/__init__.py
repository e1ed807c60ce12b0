"""Presets: the corpora, networks and training runs of the paper, of the built-in model, and of our additions."""
