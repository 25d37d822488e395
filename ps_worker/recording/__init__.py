"""What a worker writes down of each of its steps, for whoever compares runs afterwards.

It must not know the network, nor who reads the files.
"""
