"""Views of a running service, for a person.

It asks the public status calls only. It must not know how servers come to their figures.
"""
