"""A shard: slices of tables with their optimizer state, frames that reach them, orders that change them.

From the outside in: transport, the shard, its jobs, table, partition, optimizer. It must not decide who is
a member.
"""
