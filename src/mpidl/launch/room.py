"""Whether a directory has room for what MPI is about to put there; libraries that find none die of it, or hang."""

from __future__ import annotations

import math
import os

from mpidl.errors import MpidlError

__all__ = ["SHARED_MEMORY", "check_room"]

SHARED_MEMORY = "/dev/shm"


def check_room(directory: str, needed: int, what: str, remedy: str) -> None:
    """Check that a directory has room.

    Parameters
    ----------
    directory : str
    needed : int
        Bytes.
    what, remedy : str
        What needs the room, and what to do if there is none.

    Raises
    ------
    MpidlError
        There is less. A directory that can't be looked at is not judged.
    """
    try:
        status = os.statvfs(directory)
    except OSError:
        return
    free = status.f_bavail * status.f_frsize
    if free < needed:
        raise MpidlError(
            f"{what}: {math.ceil(needed / 1e6)} MB needed in {directory}, {free // 1_000_000} MB free: {remedy}"
        )
