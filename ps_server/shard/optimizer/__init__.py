"""The arithmetic of one partition: the mean, torch's optimizers on pieces of parameters, compiled passes.

It must not know clocks, members or frames.
"""
