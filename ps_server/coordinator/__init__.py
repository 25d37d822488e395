"""The coordinator: it alone decides who is a member, which steps are chosen, and when a job goes back.

It is used on the event loop only, and must not touch a tensor.
"""
