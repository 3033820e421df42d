"""Paths that a user gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
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


def measured_file() -> Path:
    """Return the file in which this user keeps what was measured, if there is any."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "mpidl" / "measured.toml"


def check_new(file: Path, force: bool) -> None:
    """Raise UsageError if a file exists already, unless `force` allows to replace it, or has no directory to be in."""
    if os.path.lexists(file) and not (force and file.is_file()):
        expected = "--force to replace it" if file.is_file() else "the name of a file"
        raise UsageError(f"{file}: exists already, expected {expected}")
    if not file.parent.is_dir():
        raise UsageError(f"{file}: can't be written (no such directory)")


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Yield the path under which a file is to be written, and give the file its name when that is done.

    Raises
    ------
    UsageError
        It can't be written; nothing is left of it.
    """
    partial = file.with_name(f"{file.name}.partial")
    try:
        yield partial
        os.replace(partial, file)
    except OSError as error:
        raise UsageError(f"{file}: can't be written ({error.strerror or str(error).splitlines()[0]})") from None
    finally:
        partial.unlink(missing_ok=True)
