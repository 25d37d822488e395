"""Jobs as a person handles them: drop.

It asks the public calls only.
"""
