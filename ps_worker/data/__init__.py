"""The data of a script: which samples a worker uses, and where in them it is.

It must not know the network: whom to ask is handed in.
"""
