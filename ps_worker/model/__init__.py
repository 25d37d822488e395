"""A model and its optimizer as values: specs, hyper-parameters, registered objects, what lies outside tables.

It must not know the network.
"""
