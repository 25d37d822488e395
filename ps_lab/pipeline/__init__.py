"""`ps-lab pipeline`: a model in stages before it runs: where it is cut, what each costs, when it is idle.

It starts no process.
"""
