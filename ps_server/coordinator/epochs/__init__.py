"""Who uses which samples of an epoch.

It must not know streams or samples: it counts and deals.
"""
