"""Paths given by users, and files in directories that other people may have prepared: no link is followed there."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader, FileIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mpidl.errors import UsageError, quoted

if TYPE_CHECKING:
    import h5py

T = TypeVar("T")

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


def run_directory(given: str | Path, holds: str = "config.toml") -> Path:
    """Return the directory of a run, which is exactly the path that a user gives.

    Raise UsageError if it is no directory, or has nothing named `holds`.
    """
    directory = user_path(str(given))
    if not (directory / holds).exists():
        found = f"no {holds}" if directory.is_dir() else "no directory"
        raise UsageError(f"{directory}: {found}, expected the directory of a run, such as runs/digits")
    return directory


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


def regular(path: Any, flags: int, directory: int | None = None, mode: int = 0o666) -> int:
    """Open a regular file that is no link, as the ``opener`` of `open`; the path may be relative to a `directory`.

    Nothing else is opened or waited for, such as the reader of a FIFO. Raise OSError if there is anything else.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, mode, dir_fd=directory)
    except OSError as error:
        found = {errno.ELOOP: "a link", errno.ENXIO: "a pipe, a socket or a device"}.get(error.errno or 0)
        if found is None:
            raise
    else:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISREG(kind):
            return descriptor
        os.close(descriptor)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, "a directory, expected a regular file", str(path))
        found = "a pipe or a device"
    raise OSError(errno.EINVAL, f"{found}, expected a regular file", str(path))


@contextmanager
def open_directory(path: Path, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of a directory that is no link, in which `regular` and `os` take names; `make` it if need be.

    Every directory that a run makes within its own is opened here, but that of its checkpoints, which may be a link.
    Raise OSError if there is anything else.
    """
    if make:
        with suppress(FileExistsError):
            path.mkdir()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        found = "a link" if path.is_symlink() else "a file"
        raise NotADirectoryError(errno.ENOTDIR, f"{found}, expected a directory", str(path)) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def existing(path: Any, flags: int) -> int:
    """Open a regular file that must exist, as `regular` does."""
    return regular(path, flags & ~os.O_CREAT)


def open_regular(path: Path) -> BufferedReader:
    """Open a file of a run, which may be untrusted, for reading; it must be a regular file and not a link.

    Every file of a run is opened here, or checked here before a library opens it. Raise OSError if there is no such
    file, or it can't be read.
    """
    return open(path, "rb", opener=regular)


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
def replacing(file: Path) -> Iterator[Path]:
    """Yield a new, empty file beside a file, and give it that name at the end; on an error, remove it.

    Its name is random, and it is created exclusively, so that no other user can place a link there. A link at the final
    name is replaced, not followed.
    """
    partial = file.with_name(f"{file.name[:40]}-{secrets.token_hex(8)}.partial")
    try:
        with open(partial, "xb", opener=regular) as new:
            made = os.fstat(new.fileno())
        yield partial
        with open(partial, "ab", opener=existing) as written:
            if os.fstat(written.fileno()).st_ino != made.st_ino:  # a library has made its own, for its owner alone
                os.fchmod(written.fileno(), stat.S_IMODE(made.st_mode))
        os.replace(partial, file)
    except OSError as error:
        if str(error.filename) != str(partial):
            raise
        raise OSError(error.errno, error.strerror, str(file)) from None
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Yield the path of a new file for writing, and rename it to the file at the end.

    Raise UsageError if it can't be written; the new file is removed.
    """
    try:
        with replacing(file) as partial:
            yield partial
    except OSError as error:
        raise UsageError(f"{file}: can't be written ({error.strerror or str(error).splitlines()[0]})") from None


def by_flags(open_file: Callable[..., T], order: Sequence[bool | None] = (False, None, True)) -> T:
    """Return what a function returns for the first ``locking`` and ``swmr``, keywords of `h5py.File`, that fit.

    HDF5 opens a file that this process or a writer has open only by the flags of these. Raise the first OSError if none
    fit.
    """
    failed = None
    for locking, swmr in product(order, (False, True)):
        try:
            return open_file(locking=locking, swmr=swmr)
        except OSError as error:
            failed = failed or error
            if "flag" not in str(failed):
                break
    assert failed is not None
    raise failed


class _Unfailing(FileIO):
    """A file that HDF5 writes, and the first `error` of a write, which HDF5 doesn't see.

    HDF5 can't close a file after a write that has failed, such as on a full disk: the process dies of it at its end.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        with self._keeping_error():
            while rest and self.error is None:
                rest = rest[super().write(rest) :]
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        with self._keeping_error():
            super().truncate(size)
        return self.seek(0, os.SEEK_END)

    @contextmanager
    def _keeping_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error


@contextmanager
def writing_hdf5(
    path: Path | str, mode: str = "w+", directory: int | None = None, **options: Any
) -> Iterator[h5py.File]:
    """Yield an HDF5 file for writing, with options of `h5py.File`; mode ``"x+"`` expects that there is none.

    The path may be relative to a `directory`.

    Raise OSError if it can't be opened, or, when it is closed, if a part of it couldn't be written.
    """
    import h5py

    with _Unfailing(path, mode, opener=lambda name, flags: regular(name, flags, directory)) as written:
        try:
            with h5py.File(written, "w", **options) as file:
                yield file
        except (OSError, RuntimeError):  # it reads what isn't there
            if written.error is None:
                raise
        if written.error is not None:
            raise written.error


def write_whole(file: Path, content: bytes) -> None:
    """Write a file completely or not at all, and wait until it is on disk; raise OSError if that fails."""
    with replacing(file) as partial, open(partial, "wb", opener=regular) as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())


#: Bytes of the longest line of a file of lines.
LONGEST = 1 << 20


def appending(file: Path) -> FileIO:
    """Open a file of lines for appending; remove an incomplete last line, left by a writer that died.

    If the file has other names, hard links, they keep its present content. Raise OSError if it can't be written, or
    what comes after its last line is too long for one.
    """
    with open(file, "a+b", opener=regular) as lines:
        size = lines.seek(0, os.SEEK_END)
        start = max(0, size - LONGEST)
        lines.seek(start)
        end = lines.read(LONGEST).rfind(b"\n") + 1
        if start and not end:
            raise OSError(errno.EFBIG, f"no line in its last {LONGEST >> 20} MiB", str(file))
        if os.fstat(lines.fileno()).st_nlink > 1:
            lines.seek(0)
            with replacing(file) as partial, open(partial, "wb", opener=regular) as copy:
                shutil.copyfileobj(lines, copy)
    opened = FileIO(file, "a+", opener=regular)
    if start + end < size:
        opened.truncate(start + end)
    return opened


def append_line(file: FileIO, line: bytes) -> None:
    """Append a line to a file of lines, open for reading, too; raise OSError, and leave no part of it, if it can't be.

    If the last line is incomplete, it is ended first. Several processes may append to one file.
    """
    size = os.fstat(file.fileno()).st_size
    rest = line if os.pread(file.fileno(), 1, size - 1 if size else 0) in (b"\n", b"") else b"\n" + line
    written = 0
    try:
        while rest:
            rest = rest[(part := file.write(rest)) :]
            written += part
    except OSError:
        if written and file.tell() == os.fstat(file.fileno()).st_size:  # no other process has written since
            file.truncate(file.tell() - written)
        raise
