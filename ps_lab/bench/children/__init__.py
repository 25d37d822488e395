"""Programs of a bench's processes: each does a round when it is told to.

They must not know whose turn it is, nor what is made of their times.
"""
