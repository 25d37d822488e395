"""Traffic of one table that is under way between this worker and all shards.

It must not know modules, optimizers or sockets.
"""
