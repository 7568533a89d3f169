"""How many files and connections the process may have open."""

import resource

MAX_DESCRIPTORS = 65_536
"""Enough for any process of ours. Some hard limits are a billion, and programs that a process starts may go through all
descriptors up to the limit."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files, usually 1,024, as far as the system allows; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return descriptor_limit()
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
