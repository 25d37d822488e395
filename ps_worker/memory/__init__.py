"""Where a worker's gradients and weights lie: flat, mapped, staged from a device, given back to the system.

It must not know frames or steps.
"""
