"""The checkpoints of a run: which there are, the newest good one, the best one, and removal of old ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from mpidl.errors import MpidlError, UsageError, outcome
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.files import cannot_read, cannot_write, readable
from mpidl.storage.integrity import DamagedError, verify
from mpidl.storage.position import Best


def steps(checkpoints: Path) -> list[int]:
    """Return the steps of the checkpoints in a run's directory, ascending.

    Raise MpidlError if the directory can't be read.
    """
    with readable(checkpoints), contextlib.suppress(FileNotFoundError):
        return sorted(int(entry.name) for entry in checkpoints.iterdir() if entry.name.isdecimal())
    return []


def newest_good(
    run: Path, rank: int = 0, gather: Callable[[Any], list[Any]] = lambda value: [value]
) -> tuple[Path, list[str]]:
    """Find a run's newest undamaged checkpoint; collective over the ranks that share the work.

    The first rank lists the checkpoints; each rank verifies its part of the files.

    Parameters
    ----------
    run : Path
        ``runs/NAME``.
    gather : callable
        Returns the values of all ranks on every rank, like ``comm.allgather``.

    Returns
    -------
    path : Path
        The checkpoint, on every rank.
    lines : list of str
        A line for each newer one that is damaged.

    Raises
    ------
    UsageError
        There is none.
    MpidlError
        A file can't be read for a reason other than damage. Every rank raises the same error.
    """
    checkpoints = run / "checkpoints"
    listings = gather(outcome(partial(steps, checkpoints)) if rank == 0 else None)
    if isinstance(listings[0], MpidlError):
        raise listings[0]
    damaged: list[MpidlError] = []
    for step in reversed(listings[0]):
        path = checkpoints / str(step)
        errors = [error for error in gather(outcome(partial(verify, path, rank, len(listings)))) if error is not None]
        for error in errors:
            if not isinstance(error, DamagedError):
                raise error
        if not errors:
            return path, [f"{error}; taking {step} instead" for error in damaged]
        damaged.append(errors[0])
    if damaged:
        raise UsageError(f"{checkpoints}: every checkpoint is damaged; {damaged[0]}")
    raise UsageError(f"{run}: no checkpoint to read in {checkpoints}")


def latest(run: Path, rank: int = 0, gather: Callable[[Any], list[Any]] = lambda value: [value]) -> Checkpoint:
    """Return a run's newest undamaged checkpoint, found by `newest_good`; stderr names those passed over."""
    path, lines = newest_good(run, rank, gather)
    for line in lines if rank == 0 else ():
        print(f"mpidl: {line}", file=sys.stderr, flush=True)
    return Checkpoint(path)


def prune(checkpoints: Path, keep: int, newest: int, best: int | None = None) -> None:
    """Remove all checkpoints except the initial state, the best, and the newest `keep` (from 1) up to step `newest`.

    Those of later steps were damaged when the run resumed.
    """
    found = [step for step in steps(checkpoints) if step > 0]
    kept = [step for step in found if step <= newest][-keep:]
    for step in set(found) - {*kept, best}:
        path, removed = checkpoints / str(step), checkpoints / f".{step}.removed"
        # A directory under a checkpoint's name is always complete.
        with contextlib.suppress(OSError):
            path.rename(removed)
            shutil.rmtree(removed)


def sweep(checkpoints: Path) -> None:
    """Remove the incomplete checkpoints of a run that died; give a complete one its name, unless that is taken.

    A run that resumes calls this before it looks for its newest checkpoint. Raise MpidlError if a file can't be read.
    """
    for entry in sorted(checkpoints.glob(".*"), key=lambda entry: entry.suffix):
        with contextlib.suppress(DamagedError):
            verify(entry)
            target = checkpoints / str(Checkpoint(entry).position.step)
            if not target.exists():
                entry.rename(target)
        shutil.rmtree(entry, ignore_errors=True)


#: Name of the file in a run's directory.
BEST = "best.json"


def read_best(run: Path) -> Best | None:
    """Return the best checkpoint of the run in a directory; None if it has none.

    Raise MpidlError if the file can't be read.
    """
    path = run / BEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Best)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise cannot_read(path, error) from error


def write_best(run: Path, best: Best) -> None:
    """Name the best checkpoint of the run in a directory; the file changes as a whole.

    Raise MpidlError if the file can't be written.
    """
    path, temporary = run / BEST, run / f".{BEST}"
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(best) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error


def step_of(run: Path, step: int | str) -> int:
    """Return a step, given as a number or as ``"best"``.

    Raise UsageError if it is something else, or the run has no best checkpoint.
    """
    if step == "best":
        best = read_best(run)
        if best is None:
            raise UsageError(f"{run}: no best checkpoint: only runs with run.patience or validation data have one")
        return best.step
    if not str(step).isdecimal():
        raise UsageError(f"step: expected a number or 'best', found {step!r}")
    return int(step)
