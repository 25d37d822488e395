"""A snapshot's form at rest: its manifest, its tensor files, and storage that holds them whole or not at all.

It must not know when a snapshot is taken or what is done with it.
"""
