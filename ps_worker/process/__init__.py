"""The worker as a process: signals, forks, waits that can be told, what a person reads.

It must not know jobs or tensors.
"""
