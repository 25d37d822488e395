"""Access between processes: tokens, certificates, channels with their options, errors as statuses.

It must not know what is said over a channel.
"""
