"""The mirrors of a run in a node's memory, and how a job resumes from those that are left.

Their place is a directory of that run alone, which only its user can enter.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from mpidl.errors import MpidlError, outcome
from mpidl.launch import shared_memory
from mpidl.paths import open_directory, open_regular, read_text, regular, write_whole
from mpidl.storage.files import INDEX, INTERIM, MEMBER, UNFINISHED, cannot_read, cannot_write, sync
from mpidl.storage.integrity import PIECE, Seal, verify_file, verify_index
from mpidl.storage.removal import remove
from mpidl.storage.writer import give_name

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
    """Return the name of a run's mirrors, the same on every node; None if it has never made any.

    With `make` it gets a name if it has none. A copy of the run's directory has another name. Raise OSError if the
    file with its token can't be read or written.
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
    """Remove all mirrors from a place except one and the last complete one: the others are abandoned."""
    last = ""
    with suppress(OSError):
        last = read_text(place / LAST, of_run=True).decode(errors="replace")
    for entry in mirrors(place):
        if entry.name not in (mirror, last):
            remove(entry)


def discard(place: Path) -> None:
    """Remove a place with all of its mirrors; other files stay."""
    with suppress(OSError):
        # If several ranks do this at the same time, the rename succeeds for one of them.
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
    # Keep the mirrors of a run whose file system isn't mounted here.
    return run.parent.is_dir() and (identity(run) != place.name or (run / "summary.json").exists())


Gather = Callable[[Any], list[Any]]
#: A number that no two running systems share.
BOOT = Path("/proc/sys/kernel/random/boot_id")


class _MirrorIndex(NamedTuple):
    """A mirror of which this node has the index: its step, and its other files with their seals."""

    step: int
    files: dict[str, str]


def recover(run: Path, newer_than: int, rank: int, gather: Gather) -> tuple[int | None, list[str]]:
    """Make a run's newest mirror a checkpoint in its directory, if it is of a later step; collective.

    Every file of it must be as it was saved, on some node that has ranks. Return the step, None if there is no such
    mirror, and a line for each one that lacks a file. Raise MpidlError, the same on every rank, if the run's directory
    can't be read or written.
    """
    known = gather(outcome(partial(_identity, run)) if rank == 0 else None)[0]
    if isinstance(known, MpidlError):
        raise known
    if known is None:
        return None, []
    place = place_of(known)
    indexes = [(name, each, found) for each, own in enumerate(gather(_indexes(place))) for name, found in own.items()]
    # Ranks that see the same memory share the work.
    places = gather(_memory(place))
    sharing = [each for each, other in enumerate(places) if other == places[rank]]
    part = slice(sharing.index(rank), None, len(sharing))
    lines, tried = [], set[str]()
    for mirror, first, (step, files) in sorted(indexes, key=lambda each: -each[2].step):
        if step <= newer_than or mirror in tried:
            continue
        tried.add(mirror)
        good = gather(_good(place / mirror, list(files.items())[part]))
        holders = {name: holder for holder, names in reversed(list(enumerate(good))) for name in names}
        holders[INDEX] = first
        if missing := [name for name in files if name not in holders]:
            lines.append(f"{run}: the mirror of step {step} lacks {missing[0]}, whose nodes are lost, or it is damaged")
            continue
        _restore(place / mirror, run / "checkpoints" / mirror, step, holders, rank, gather)
        return step, lines
    return None, lines


def _identity(run: Path) -> str | None:
    try:
        return identity(run)
    except OSError as error:
        raise cannot_read(run, error) from error


def _memory(place: Path) -> tuple[str, int, int]:
    """Return a value that identifies the memory of this node."""
    with suppress(OSError):
        status = place.stat()
        return BOOT.read_text(), status.st_dev, status.st_ino
    return "", os.getpid(), 0


def _indexes(place: Path) -> dict[str, _MirrorIndex]:
    """Return the mirrors in this node's memory whose index is there and good, by the names of their directories."""
    found = {}
    for mirror in mirrors(place):
        with suppress(MpidlError):
            step, seals, _ = verify_index(mirror)
            if all(map(MEMBER.fullmatch, seals)):
                found[mirror.name] = _MirrorIndex(step, {name: str(seal) for name, seal in seals.items()})
    return found


def _good(mirror: Path, files: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names of the files that are in this node's memory as they were saved."""
    found: list[str] = []
    if mirror not in mirrors(mirror.parent):
        return found
    for name, seal in files:
        with suppress(MpidlError):
            verify_file(mirror / name, Seal.parse(seal))
            found.append(name)
    return found


def _restore(mirror: Path, target: Path, step: int, holders: dict[str, int], rank: int, gather: Gather) -> None:
    """Copy a mirror's files into the run's directory, each by its holder, the index last; then name the checkpoint."""

    def make() -> None:
        with open_directory(target, make=True):
            pass

    def copy_own() -> None:
        for name, holder in holders.items():
            if holder == rank and name != INDEX:
                _copy(mirror / name, target / name)

    def finish() -> None:
        _copy(mirror / INDEX, target / INDEX)
        sync(target)
        give_name(target, step)

    for stage, takes_part in ((make, rank == 0), (copy_own, True), (finish, holders[INDEX] == rank)):
        for error in gather(outcome(partial(_written, target, stage)) if takes_part else None):
            if isinstance(error, MpidlError):
                raise error


def _written(target: Path, stage: Callable[[], object]) -> None:
    try:
        stage()
    except OSError as error:
        raise cannot_write(target, error) from error


def _copy(source: Path, target: Path) -> None:
    with open_regular(source) as file, open(target, "xb", opener=regular) as copy:
        shutil.copyfileobj(file, copy, PIECE)
        copy.flush()
        os.fsync(copy.fileno())
