"""Jobs as a person handles them: drop, stop.

It asks the public calls only. It must not know who is a member, nor how servers forget a job.
"""
