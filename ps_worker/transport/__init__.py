"""Connections to shards and to the coordinator: the one place of the worker that knows gRPC and sockets.

It must not know what a frame is for.
"""
