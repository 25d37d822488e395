"""One partition: the state machine of its step, its tensors behind one lock, what may not be applied.

The machines are pure. It must not know tables, shards or connections.
"""
