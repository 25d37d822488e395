"""Commands that a person runs: a local cluster, its status, the demo.

It drives the public commands as processes and asks the servers over gRPC; it knows nothing of their insides.
"""
