"""Rules that coordinator and shards follow alike: gates, clipped norms, chosen steps, cut points.

Pure arithmetic of clocks: it must not know torch, gRPC or either half of the server.
"""
