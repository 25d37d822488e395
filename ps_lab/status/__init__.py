"""Views of a running service, for a person.

It asks the public status calls only.
"""
