"""What a person sees of a running service.

It asks the public status calls only.
"""
