"""A worker's link to its job: joining, tables that start, re-entering after an eviction or a rollback.

It must not know modules' hooks or the script's data.
"""
