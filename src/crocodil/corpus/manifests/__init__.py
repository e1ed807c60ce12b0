"""Pinned wheels: what a corpus was built from, name by name."""
