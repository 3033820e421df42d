"""Paths given by users, and files that other people may have made."""

from __future__ import annotations

import errno
import glob
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from mpidl.errors import UsageError, quoted

#: Largest lengths in bytes of a file's name, and of a path.
NAME_BYTES, PATH_BYTES = 255, 4000

#: Largest size in bytes of a file of text, such as a configuration or a summary.
TEXT_BYTES = 1 << 20


def user_path(text: str) -> Path:
    """Return the path for a text, with a ``~`` expanded; raise UsageError if no file can have such a name."""
    encoded = os.fsencode(text)
    if b"\0" in encoded or len(encoded) > PATH_BYTES or any(len(name) > NAME_BYTES for name in encoded.split(b"/")):
        raise UsageError(f"{quoted(text)}: no file can have such a name")
    return Path(os.path.expanduser(text))


def argument(path: Path) -> str:
    """Return a path as an argument of a command, which would take a ``-`` at its beginning for that of an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def shell_word(text: str) -> str:
    """Return text as one word and on one line for bash, with escaped control characters."""
    if text.isprintable():
        return shlex.quote(text)
    plain = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in "'\\" else f"\\x{byte:02x}" for byte in os.fsencode(text)
    )
    return f"$'{''.join(plain)}'"


def shell_words(texts: Iterable[str]) -> str:
    """Return texts as words of a command line for bash."""
    return " ".join(map(shell_word, texts))


def measured_file() -> Path:
    """Return the file of this user's measurements, which need not exist."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(os.path.expanduser(home)) / "mpidl" / "measured.toml"


def numbered(run: Path) -> dict[int, Path]:
    """Return the directories of the runs of a name, by number: NAME, NAME-2, NAME-3, ... are made in this order."""
    runs = {1: run}
    for path in run.parent.glob(f"{glob.escape(run.name)}-*"):
        number = path.name.removeprefix(f"{run.name}-")
        if number.isdecimal() and int(number) > 1:
            runs[int(number)] = path
    return runs


def check_new(file: Path, force: bool) -> None:
    """Raise UsageError if a file exists, unless `force` allows its replacement, or if its directory doesn't exist."""
    if os.path.lexists(file) and not (force and file.is_file()):
        expected = "--force to replace it" if file.is_file() else "the name of a file"
        raise UsageError(f"{file}: exists already, expected {expected}")
    if not file.parent.is_dir():
        raise UsageError(f"{file}: can't be written (no such directory)")


def open_regular(path: Path) -> BufferedReader:
    """Open a file of a run, which may come from somebody else; it must be a regular one, and no link.

    Every file of a run is opened here, or checked here before a library opens it. Nothing else is read or waited for,
    such as the writer of a FIFO. Raise OSError if there is no such file, or it can't be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        found = {errno.ELOOP: "a link", errno.ENXIO: "a socket or a device"}.get(error.errno or 0)
        if found is None:
            raise
    else:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "a directory, expected a regular file", str(path))
        found = "a pipe or a device"
    raise OSError(errno.EINVAL, f"{found}, expected a regular file", str(path))


def read_text(path: Path, of_run: bool = False) -> bytes:
    """Return the content of a file of text; raise OSError if it can't be read, or has more than `TEXT_BYTES`.

    That of a run is opened by `open_regular`; one that a user has named may be a pipe or a link, too.
    """
    with open_regular(path) if of_run else path.open("rb") as file:
        content = file.read(TEXT_BYTES + 1)
    if len(content) > TEXT_BYTES:
        raise OSError(errno.EFBIG, f"more than {TEXT_BYTES >> 20} MiB, expected a file of text", str(path))
    return content


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Yield a temporary path for writing a file, and rename it to the file at the end.

    Raise UsageError if it can't be written; the temporary file is removed.
    """
    partial = file.with_name(f"{file.name}.partial")
    try:
        yield partial
        os.replace(partial, file)
    except OSError as error:
        raise UsageError(f"{file}: can't be written ({error.strerror or str(error).splitlines()[0]})") from None
    finally:
        partial.unlink(missing_ok=True)
