"""gRPC at the server's edge: who may call, and how an error becomes a status.

It must not know jobs, tables or tensors.
"""
