"""Corpora: sources, filters, deduplication, splits and shards.

Turns raw files into memory-mapped token shards with provenance. Does not depend on any model.
"""
