"""A shard's state on its way out and in: for snapshots, hand-offs, and workers that ask for it.

It must not know sockets or members.
"""
