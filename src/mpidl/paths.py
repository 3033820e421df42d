"""Paths that a user gives."""

from __future__ import annotations

import os
from pathlib import Path

from mpidl.errors import UsageError, quoted

#: Most bytes of a file's name, and about those of a path.
NAME_BYTES, PATH_BYTES = 255, 4000


def user_path(text: str) -> Path:
    """Return the path that a text stands for, with a ``~`` expanded.

    Raises
    ------
    UsageError
        No file can have such a name.
    """
    encoded = os.fsencode(text)
    if b"\0" in encoded or len(encoded) > PATH_BYTES or any(len(name) > NAME_BYTES for name in encoded.split(b"/")):
        raise UsageError(f"{quoted(text)}: no file can have such a name")
    return Path(os.path.expanduser(text))
