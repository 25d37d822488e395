"""What coordinator and shards must decide alike: gates, clipped norms, chosen steps, cut points.

Pure arithmetic of clocks: it must not know torch, gRPC or either half of the server.
"""
