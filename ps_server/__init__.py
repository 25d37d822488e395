"""The shards and the coordinator: weights, optimizer state, gates, membership."""
