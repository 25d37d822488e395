"""Snapshots of jobs: when one is due, how it is taken, and which saved one a job goes back to.

It must not know how tensors are written.
"""
