"""The devices of a group's ranks: which GPU is whose, and what ranks reduce and gather between them.

It must not know steps or frames.
"""
