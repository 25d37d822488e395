"""Data connections of a shard, over every carrier: who they are, what is queued, which memory is mapped.

It must not know optimizers or steps.
"""
