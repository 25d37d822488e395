"""A job as the coordinator sees it: members, leases, tables that start, actions that follow.

It must not know streams, shards' processes or snapshots.
"""
