"""The shards as the coordinator sees them: who they are, what they are ordered, what they report.

It must not know how a shard carries an order out.
"""
