"""Comparisons of consistency models: runs as they are done, what was recorded, and what that says.

It reads folders and makes reports. It must not know the code of the servers.
"""
