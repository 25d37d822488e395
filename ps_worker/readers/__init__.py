"""Readers: who reads the weights of a job at any time, and is no member of it.

It must not know how a worker trains.
"""
