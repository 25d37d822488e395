"""Benchmarks: the project beside its peers and the machine's own limit, in turns, in one run.

It must not know what a target is: `benchmarks/targets.py` does.
"""
