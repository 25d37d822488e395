"""Consistency models in virtual time: the servers' own machines, and workers that are numbers.

Knows of `ps_server` the pure modules that `servers.py` names, and starts no process and no thread.
"""
