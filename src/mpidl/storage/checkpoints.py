"""The checkpoints of a run: which there are, the newest good one, and those that go."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpidl.errors import MpidlError, UsageError
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.files import cannot_read
from mpidl.storage.integrity import DamagedError, verify


def steps(checkpoints: Path) -> list[int]:
    """Return the steps of the checkpoints in a run's directory, ascending.

    Raises
    ------
    MpidlError
        The directory can't be read.
    """
    try:
        return sorted(int(entry.name) for entry in checkpoints.iterdir() if entry.name.isdecimal())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cannot_read(checkpoints, error) from error


def newest_good(
    run: Path, rank: int = 0, gather: Callable[[Any], list[Any]] = lambda value: [value]
) -> tuple[Path, list[str]]:
    """Find a run's newest checkpoint that is as it was saved; collective over the ranks that share the work.

    The first rank lists the checkpoints; each rank verifies its part of the files.

    Parameters
    ----------
    run : Path
        ``runs/NAME``.
    rank : int
        This rank.
    gather : callable
        Returns the values of all ranks on every rank, as ``comm.allgather`` does.

    Returns
    -------
    path : Path
        The checkpoint, on every rank.
    lines : list of str
        A line about each newer one that was passed over because it is damaged.

    Raises
    ------
    UsageError
        There is none.
    MpidlError
        A file can't be read for another reason than damage. Every rank raises the same error.
    """
    checkpoints = run / "checkpoints"
    listings = gather(_outcome(steps, checkpoints) if rank == 0 else None)
    if isinstance(listings[0], MpidlError):
        raise listings[0]
    damaged: list[MpidlError] = []
    for step in reversed(listings[0]):
        path = checkpoints / str(step)
        errors = [error for error in gather(_outcome(verify, path, rank, len(listings))) if error is not None]
        for error in errors:
            if not isinstance(error, DamagedError):
                raise error
        if not errors:
            return path, [f"{error}; taking {step} instead" for error in damaged]
        damaged.append(errors[0])
    if damaged:
        raise UsageError(f"{checkpoints}: every checkpoint is damaged; {damaged[0]}")
    raise UsageError(f"{run}: no checkpoint to read in {checkpoints}")


def _outcome(action: Callable[..., Any], *arguments: Any) -> Any:
    """Return what an action returns, or the error that it raises."""
    try:
        return action(*arguments)
    except MpidlError as error:
        return error


def latest(run: Path) -> Checkpoint:
    """Return a run's newest checkpoint that is as it was saved; stderr names those passed over.

    Raises
    ------
    UsageError, MpidlError
        See `newest_good`.
    """
    path, lines = newest_good(run)
    for line in lines:
        print(f"mpidl: {line}", file=sys.stderr, flush=True)
    return Checkpoint(path)


def prune(checkpoints: Path, keep: int, newest: int, best: int | None = None) -> None:
    """Remove all checkpoints but the initial state, the best, the one saved last and the `keep` - 1 before it.

    Parameters
    ----------
    checkpoints : Path
    keep : int
        From 1.
    newest : int
        Step of the checkpoint saved last. Those of later steps were damaged and passed over when the run resumed.
    best : int, optional
        Step of the best checkpoint.
    """
    found = [step for step in steps(checkpoints) if step > 0]
    kept = [step for step in found if step <= newest][-keep:]
    for step in set(found) - {*kept, best}:
        path, removed = checkpoints / str(step), checkpoints / f".{step}.removed"
        # Remove none in part: what is under its name is whole.
        with contextlib.suppress(OSError):
            path.rename(removed)
            shutil.rmtree(removed)


def sweep(checkpoints: Path) -> None:
    """Remove what a run that died left half-written; give a whole checkpoint its name, unless there is one of its step.

    A run that resumes sweeps before it looks for its newest checkpoint.

    Raises
    ------
    MpidlError
        A file can't be read.
    """
    for entry in sorted(checkpoints.glob(".*"), key=lambda entry: entry.suffix):
        with contextlib.suppress(DamagedError):
            verify(entry)
            target = checkpoints / str(Checkpoint(entry).position.step)
            if not target.exists():
                entry.rename(target)
        shutil.rmtree(entry, ignore_errors=True)
