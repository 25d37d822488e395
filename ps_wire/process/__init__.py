"""What a process of any package is made of: the allocator, compiled kernels, the trace, a command's end.

It must not know frames, tables or the service.
"""
