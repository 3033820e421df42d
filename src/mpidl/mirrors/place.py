"""The place of a run's mirrors in a node's memory: a directory that only its user can enter, of that run alone."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import xxhash

from mpidl.errors import MpidlError
from mpidl.launch import shared_memory
from mpidl.paths import read_text, write_whole
from mpidl.storage.files import INTERIM, UNFINISHED
from mpidl.storage.removal import remove

#: File in a run's directory whose content no other run's has.
TOKEN = ".mirrors"
#: File in a place with the path of the run's directory.
RUN = "run"
#: File in a place with the name of the last complete mirror's directory.
LAST = "last"


def place_of(identity: str) -> Path:
    """Return the place of the mirrors of a run, given its `identity`; it need not exist."""
    return shared_memory.SHARED_MEMORY / f"mpidl.mirrors.{os.getuid()}" / identity


def identity(run: Path, make: bool = False) -> str | None:
    """Return what the mirrors of a run are known by on every node; None if it has never made any.

    If it is to `make` some, it has one afterwards. That of a copy of the directory is another. Raise OSError if the
    file that says so can't be read or written.
    """
    try:
        token = read_text(run / TOKEN, of_run=True)
    except FileNotFoundError:
        if not make:
            return None
        token = secrets.token_hex(16).encode()
        write_whole(run / TOKEN, token)
    return xxhash.xxh3_128_hexdigest(token + os.fsencode(os.path.realpath(run)))


def is_private(directory: Path) -> bool:
    """Return whether a path is a directory of this user, which no other can enter."""
    with suppress(OSError):
        status = directory.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return False


def prepare(place: Path, run: Path) -> None:
    """Make the place of a run's mirrors.

    Raise MpidlError if something else has its name, and OSError if it can't be written.
    """
    for directory in (place.parent, place):
        with suppress(FileExistsError):
            directory.mkdir(0o700)
        if not is_private(directory):
            raise MpidlError(f"{directory} is there, expected no such name, or a directory of yours of mode 700")
    write_whole(place / RUN, os.fsencode(os.path.realpath(run)))


def mirrors(place: Path) -> Iterator[Path]:
    """Yield the directories of mirrors in a place, complete or not; none of a place that others can enter."""
    if is_private(place.parent) and is_private(place):
        with suppress(OSError):
            for entry in list(place.iterdir()):
                if entry.suffix == INTERIM and UNFINISHED.fullmatch(entry.name) and not entry.is_symlink():
                    yield entry


def keep_only(place: Path, mirror: str) -> None:
    """Note which mirror is complete, and remove all others from a place."""
    write_whole(place / LAST, mirror.encode())
    make_room(place, mirror)


def make_room(place: Path, mirror: str = "") -> None:
    """Remove all mirrors from a place but one and the last complete one: others have been given up."""
    last = ""
    with suppress(OSError):
        last = read_text(place / LAST, of_run=True).decode(errors="replace")
    for entry in mirrors(place):
        if entry.name not in (mirror, last):
            remove(entry)


def discard(place: Path) -> None:
    """Remove a place with all of its mirrors; what isn't this package's stays."""
    with suppress(OSError):
        # Of several ranks that do so, one has it to itself.
        aside = place.rename(place.with_name(f"{place.stem}.{secrets.token_hex(4)}"))
        (aside / LAST).unlink(missing_ok=True)
        make_room(aside)
        (aside / RUN).unlink(missing_ok=True)
        aside.rmdir()
        place.parent.rmdir()


def sweep(parent: Path) -> None:
    """Remove the places of runs that have ended, or whose directories are gone, from the directory of all."""
    if not is_private(parent):
        return
    with suppress(OSError):
        for place in list(parent.iterdir()):
            with suppress(OSError):
                if is_private(place) and _is_over(place):
                    discard(place)


def _is_over(place: Path) -> bool:
    run = Path(os.fsdecode(read_text(place / RUN, of_run=True)))
    # A file system that isn't mounted here says nothing.
    return run.parent.is_dir() and (identity(run) != place.name or (run / "summary.json").exists())
