"""A live view of a running service: workers as lanes, servers, staleness over time, events.

It asks the public status calls only. How a view is drawn does not depend on where it comes from.
"""
