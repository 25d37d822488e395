"""The memory of a worker's gradients and weights: flat, mapped, staged from a device, given back.

It must not know frames or steps.
"""
