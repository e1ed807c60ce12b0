"""Where programs come from: sources, filters, deduplication, splits, shards.

Raw material in, memory-mapped token shards with provenance out. Knows no model.
"""
