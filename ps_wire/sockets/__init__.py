"""Frames and payloads over sockets of one host or between hosts: plain, TLS, with lent or shared memory.

It must not know what a frame means.
"""
