"""The checkpoints of a run: the newest good one, the best one, removal of old ones, and the trained model in one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from mpidl.errors import MpidlError, UsageError, outcome, shown
from mpidl.launch.output import say
from mpidl.paths import read_text, write_whole
from mpidl.schema import MALFORMED
from mpidl.storage.checkpoint import BUFFERS, CONSTANTS, Checkpoint
from mpidl.storage.files import INDEX, RUN, UNFINISHED, bases_of, cannot_read, cannot_write, readable, scratch
from mpidl.storage.integrity import DamagedError, verify
from mpidl.storage.own_values import UNREADABLE, attributes, opened
from mpidl.storage.position import Best
from mpidl.storage.removal import is_complete, is_own, remove, set_aside
from mpidl.storage.table_files import SavedTable, saved_tables


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
        There is none, or their directory is a link into another run.
    MpidlError
        A file can't be read for a reason other than damage. Every rank raises the same error.
    """
    checkpoints = run / "checkpoints"

    def look() -> list[int]:
        _check_link(checkpoints)
        return steps(checkpoints)

    listings = gather(outcome(look) if rank == 0 else None)
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
        say(line)
    return Checkpoint(path)


def prune(checkpoints: Path, keep: int, newest: int, best: int | None = None) -> None:
    """Remove all checkpoints except the initial state, the best, and the newest `keep` (from 1) up to step `newest`.

    Those with rows of tables that these lack stay, too. Those of later steps were damaged when the run resumed. What
    isn't a checkpoint stays, whatever its name.
    """
    found = [step for step in steps(checkpoints) if step > 0 and (checkpoints / str(step) / INDEX).exists()]
    kept = {*[step for step in found if step <= newest][-keep:], best} & set(found)
    for step in set(found) - kept.union(*(_bases(checkpoints / str(step)) for step in kept)):
        # A directory under a checkpoint's name is always complete.
        with contextlib.suppress(OSError):
            remove(set_aside(checkpoints / str(step), "removed"))


def _bases(checkpoint: Path) -> list[int]:
    """Return the steps of the checkpoints with rows of tables that one lacks; none if it is damaged."""
    with contextlib.suppress(*UNREADABLE), opened(checkpoint / INDEX) as file:
        return [base.step for base in bases_of(file).values()]
    return []


def discard(checkpoints: Path, token: str, order: int) -> None:
    """Remove what is left of the checkpoints of this run that were ordered before `order` and given up.

    So is what a process that died has left of a checkpoint that it replaced or removed. The run's `token` is that of
    `mpidl.storage.files.scratch`.
    """
    with contextlib.suppress(OSError):
        for entry in list(checkpoints.iterdir()):
            if (found := UNFINISHED.fullmatch(entry.name)) is None:
                continue
            given_up = entry == scratch(checkpoints, number := int(found[1]), token) and number < order
            if given_up or found[3]:
                remove(entry)


def sweep(checkpoints: Path) -> list[str]:
    """Remove the incomplete checkpoints of a run that died; give a complete one its name, unless that is taken.

    A run that resumes calls this before it looks for its newest checkpoint. Return the names of what isn't this
    package's, which stays. Raise MpidlError if a file can't be read, and UsageError if the directory is a link to
    nothing, or to another run's, whose checkpoints aren't to be removed.
    """
    _check_link(checkpoints)
    with readable(checkpoints), contextlib.suppress(FileNotFoundError):
        entries = sorted(checkpoints.iterdir(), key=lambda entry: (entry.suffix, entry.name))
        return [entry.name for entry in entries if not (_is_named(entry) or _is_swept(entry))]
    return []


def _check_link(checkpoints: Path) -> None:
    """Check that a run's directory of checkpoints isn't another run's; it may be a link to another file system."""
    if not checkpoints.is_symlink():
        return
    place = Path(os.path.realpath(checkpoints))
    if not place.is_dir():
        raise UsageError(f"{checkpoints}: a link to {place}, which is not a directory")
    for other in (place, place.parent):
        if (other / "config.toml").exists():
            expected = f"expected a directory for this run alone, or the run {other}"
            raise UsageError(f"{checkpoints}: a link into another run, {expected}")
    if (owner := _owner(checkpoints.parent, place)) is not None:
        raise UsageError(
            f"{checkpoints}: a link to {place}, which has the checkpoints of the run {owner}, expected a directory for "
            "this run alone"
        )


def _owner(run: Path, place: Path) -> str | None:
    """Return the run, other than `run`, to which the checkpoints in a linked directory belong; None if there is none.

    A run that no longer has a link to them, for example because it has been renamed, is no owner.
    """
    for step in reversed(steps(place)):
        with contextlib.suppress(*UNREADABLE), opened(place / str(step) / INDEX) as file:
            owner = Path(os.fsdecode(attributes(file)[RUN]))
            linked = (owner / "config.toml").exists() and os.path.realpath(owner / "checkpoints") == str(place)
            if linked and str(owner) != os.path.realpath(run):
                return shown(str(owner), 200)
    return None


def _is_named(entry: Path) -> bool:
    return entry.name.isdecimal() and is_complete(entry)


def _is_swept(entry: Path) -> bool:
    """Sweep an entry of the directory of checkpoints, and return True; return False if it isn't this package's."""
    if not UNFINISHED.fullmatch(entry.name) or not is_own(entry):
        return False
    with contextlib.suppress(DamagedError):
        verify(entry)
        target = entry.with_name(str(Checkpoint(entry).position.step))
        if not os.path.lexists(target):
            entry.rename(target)
            return True
    remove(entry)
    return True


#: Name of the file in a run's directory.
BEST = "best.json"


def read_best(run: Path) -> Best | None:
    """Return the best checkpoint of the run in a directory; None if it has none.

    Raise MpidlError if the file can't be read.
    """
    path = run / BEST
    try:
        return msgspec.json.decode(read_text(path, of_run=True), type=Best)
    except FileNotFoundError:
        return None
    except (OSError, *MALFORMED) as error:
        raise cannot_read(path, error) from error


def write_best(run: Path, best: Best) -> None:
    """Name the best checkpoint of the run in a directory; the file changes as a whole.

    Raise MpidlError if the file can't be written.
    """
    path = run / BEST
    try:
        write_whole(path, msgspec.json.encode(best) + b"\n")
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


class Trained(Struct, frozen=True):
    """The arrays of a trained model, by their names.

    Attributes
    ----------
    parameters : dict of str to array
        The parameters by their names in the layout, such as ``"0-dense/weight"``; running statistics are among them.
    aliases : dict of str to str
        Other names of parameters that several parts of a model share, each with the name in `parameters`.
    constants : dict of str to array
        Tensors that training doesn't change, such as frozen parameters.
    buffers : dict of str to array
        Tensors that a replica keeps for itself, such as the number of batches seen, and constants that the model has
        changed; those of replica 0.
    tables : dict of str to SavedTable
        The tables, whose rows stay on disk: ``tables[NAME].read("ids")`` and ``.read("rows")`` are arrays.
    """

    parameters: dict[str, np.ndarray]
    aliases: dict[str, str]
    constants: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]
    tables: dict[str, SavedTable] = {}

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """All arrays under all their names, as in an exported file; an alias is the same array."""
        shared = {alias: self.parameters[name] for alias, name in self.aliases.items()}
        return self.parameters | shared | self.constants | self.buffers


def checkpoint_of(
    run: Path, step: int | str | None = None, rank: int = 0, gather: Callable[[Any], list[Any]] = lambda value: [value]
) -> Checkpoint:
    """Return a checkpoint of a run, checked byte for byte; collective over the ranks that share the work.

    By default it is the newest undamaged one, and stderr names those passed over. `rank` and `gather` are as for
    `mpidl.storage.checkpoints.newest_good`. Every rank raises the same error: UsageError if there is no checkpoint, or
    none of that step, MpidlError if it is damaged or a file can't be read.
    """
    if step is None:
        return latest(run, rank, gather)
    size = len(gather(None))
    paths = gather(outcome(partial(_verified, run, step, rank, size)))
    for each in paths:
        if isinstance(each, MpidlError):
            raise each
    return Checkpoint(paths[rank])


def _verified(run: Path, step: int | str, rank: int, size: int) -> Path:
    """Return the directory of a step's checkpoint, after this rank's part of the checks."""
    step = step_of(run, step)
    path = run / "checkpoints" / str(step)
    _check_link(path.parent)
    if not (path / INDEX).exists():
        found = steps(run / "checkpoints")
        there = f"those of {', '.join(map(str, found))}" if found else "none"
        raise UsageError(f"{run}: no checkpoint of step {step}, there are {there}")
    verify(path, rank, size)
    return path


def read(checkpoint: Checkpoint) -> Trained:
    """Return the trained model of a checkpoint; raise MpidlError if a file can't be read."""
    parameters = checkpoint.arrays(checkpoint.trained)
    tables = saved_tables(checkpoint)
    return Trained(parameters, checkpoint.aliases, checkpoint.arrays(CONSTANTS), checkpoint.kept_by(0, BUFFERS), tables)
