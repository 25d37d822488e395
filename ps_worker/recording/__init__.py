"""Records of each of a worker's steps, for whoever compares runs afterwards.

It must not know the network, nor who reads the files.
"""
