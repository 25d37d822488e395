"""Pipelines: a model as blocks that may be cut into stages, and where it is cut.

It must not know sockets or frames.
"""
