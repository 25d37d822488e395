"""Snapshots as a person handles them: take, list, verify, restore, export.

It asks the public calls only. It must not know how servers write one.
"""
