"""A step as what takes steps shares it: the worker that is asked, its first push, and the batch in hand.

It must not know optimizers, tables, exchanges or frames.
"""
