"""Benchmarks: the project beside its peers and the machine's own limit, in turns, in one run."""
