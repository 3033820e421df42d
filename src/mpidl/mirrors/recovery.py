"""Going on from a mirror: the nodes that are left agree on the newest one that they have, and make it a checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mpidl.errors import MpidlError, outcome
from mpidl.mirrors.place import identity, mirrors, place_of
from mpidl.paths import open_regular, regular
from mpidl.storage.files import INDEX, MEMBER, cannot_read, cannot_write, sync
from mpidl.storage.index import give_name
from mpidl.storage.integrity import PIECE, Seal, verify_file, verify_index

Gather = Callable[[Any], list[Any]]
#: A number that no two running systems share.
BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Found(NamedTuple):
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
    """Return what tells the memory of this node from that of others."""
    with suppress(OSError):
        status = place.stat()
        return BOOT.read_text(), status.st_dev, status.st_ino
    return "", os.getpid(), 0


def _indexes(place: Path) -> dict[str, _Found]:
    """Return the mirrors in this node's memory whose index is there and good, by the names of their directories."""
    found = {}
    for mirror in mirrors(place):
        with suppress(MpidlError):
            step, seals = verify_index(mirror)
            if all(map(MEMBER.fullmatch, seals)):
                found[mirror.name] = _Found(step, {name: str(seal) for name, seal in seals.items()})
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
    own = [name for name, holder in holders.items() if holder == rank and name != INDEX]

    def copy_all() -> None:
        for name in own:
            _copy(mirror / name, target / name)

    stages: list[Callable[[], object]] = [
        partial(target.mkdir, exist_ok=True) if rank == 0 else lambda: None,
        copy_all,
        partial(_finish, mirror, target, step) if holders[INDEX] == rank else lambda: None,
    ]
    for stage in stages:
        for error in gather(outcome(partial(_written, target, stage))):
            if isinstance(error, MpidlError):
                raise error


def _written(target: Path, stage: Callable[[], object]) -> None:
    try:
        stage()
    except OSError as error:
        raise cannot_write(target, error) from error


def _finish(mirror: Path, target: Path, step: int) -> None:
    _copy(mirror / INDEX, target / INDEX)
    sync(target)
    give_name(target, step)


def _copy(source: Path, target: Path) -> None:
    with open_regular(source) as file, open(target, "xb", opener=regular) as copy:
        shutil.copyfileobj(file, copy, PIECE)
        copy.flush()
        os.fsync(copy.fileno())
