"""Presets: the corpora, networks and training runs of the paper, of our own models, and of our additions."""
