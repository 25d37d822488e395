"""A table's slice on one shard: its cells, how its steps close, its cuts and mapped halves.

It must not know connections or jobs.
"""
