"""The server as a process: it puts coordinator and shard together, listens, hands over and ends.

It is the only wing that sees both halves. It must not know how either decides.
"""
