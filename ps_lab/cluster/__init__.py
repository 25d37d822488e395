"""Servers and workers as child processes of one command, and nothing left behind when it ends.

It drives the public commands only. It must not know what a job trains.
"""
