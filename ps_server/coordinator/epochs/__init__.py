"""Epochs of data: which worker uses which samples.

It must not know streams or samples: it counts and deals.
"""
