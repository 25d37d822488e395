"""The bytes of the data plane and the messages of the control plane, and the seams through which they travel.

It must not know what carries a frame: sockets, shared memory and gRPC are behind its Protocols.
"""
