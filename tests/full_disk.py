"""A disk without space, for a moment."""

import resource
from contextlib import contextmanager


@contextmanager
def full_disk(size=1024):
    """Let no file of this process grow beyond `size` bytes, for a moment: pytest itself may write to one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
