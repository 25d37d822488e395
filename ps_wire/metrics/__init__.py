"""Metrics of a process for Prometheus: their names, their histograms, and the port where they are read.

It must not know where a number comes from.
"""
