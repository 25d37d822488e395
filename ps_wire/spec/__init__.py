"""Agreements of both ends before a byte moves: addresses, consistency models, tables, the partition plan.

It must not know frames, sockets, files or gRPC: everything here is computed from values alone.
"""
