"""Parts of a process of any package: the allocator, compiled kernels, the trace, a command's end.

It must not know frames, tables or the service.
"""
