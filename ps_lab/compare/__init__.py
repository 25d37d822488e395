"""Comparisons of consistency models: what is to be run, what was recorded, and what that says.

It reads experiments and folders, and makes reports. It must not know how a run is started, nor the code of
the servers.
"""
