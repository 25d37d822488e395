"""A baseline without servers: workers whose models torch's DistributedDataParallel keeps alike.

It must not know servers, nor who compares. A script cannot tell: it makes the same calls as with servers.
"""
