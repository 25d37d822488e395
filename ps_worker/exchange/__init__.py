"""What is under way in one table between this worker and all shards.

It must not know modules, optimizers or sockets.
"""
