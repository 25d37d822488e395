"""The ranks of one group among themselves: how they meet, what they send each other, what ends them together.

It must not know jobs, optimizers, shards or frames.
"""
