"""A worker's place in its job: the stream to the coordinator, heartbeats, promises to snapshots.

It must not know tensors.
"""
