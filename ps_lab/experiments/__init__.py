"""Experiments as a person writes them: what is compared, under which conditions, and in which runs.

It must not know how runs are started, nor what comes of them.
"""
