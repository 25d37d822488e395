"""When a snapshot of a job is due, how one is taken, and which of the saved ones is gone back to.

It must not know how tensors are written.
"""
