"""The optimizer that `wrap` returns: a torch optimizer whose step is pushed and pulled, with its hooks.

It must not know sockets or who is a member.
"""
