"""The files of a traced run: ``trace/RANK.h5`` for each rank, and ``trace/RANK-PROCESS.h5`` if it was taken over.

A file has the dataset ``spans``, of `mpidl.tracing.spans.SPAN`, sorted by start. Its times are seconds of the clock of
the coordinator's host. The attributes: ``rank``, ``role`` and ``host``; ``error``, the seconds by which its times may
differ from that clock; and ``dropped``, the number of spans that have not been kept.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from mpidl.errors import MpidlError, UsageError, shown
from mpidl.paths import open_directory, regular, writing_hdf5
from mpidl.storage.own_values import UNREADABLE, attributes, dataset, opened
from mpidl.tracing.spans import KINDS, SPAN

#: The directory of the files, within the run's, and their names.
DIRECTORY, NAME = "trace", re.compile(r"\d+(-\d+)?\.h5")


@dataclass(frozen=True)
class RankSpans:
    """The spans of a rank.

    Attributes
    ----------
    rank : int
    role, host : str
        Such as "worker 0".
    spans : structured array
        Sorted by start; they don't overlap. See `mpidl.tracing.spans.SPAN`.
    error : float
        Seconds by which the times may differ from the clock of the coordinator's host.
    dropped : int
        Number of spans in between that have not been kept.
    """

    rank: int
    role: str
    host: str
    spans: np.ndarray
    error: float = 0.0
    dropped: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the spans' kinds, by number."""
        return KINDS


def write(directory: Path, found: RankSpans, process: int | None = None) -> None:
    """Write the spans of a rank into a run's directory, played by another `process`; raise OSError if that fails."""
    name = f"{found.rank}.h5" if process in (None, found.rank) else f"{found.rank}-{process}.h5"
    with (
        open_directory(directory / DIRECTORY, make=True) as place,
        writing_hdf5(name, "x+", place) as file,
    ):
        file.create_dataset("spans", data=found.spans)
        for key in ("rank", "role", "host", "error", "dropped"):
            file.attrs[key] = getattr(found, key)


def remove(directory: Path) -> None:
    """Remove the files of an earlier trace from a run's directory, and nothing else."""
    with suppress(OSError), open_directory(directory / DIRECTORY) as place:
        for name in filter(NAME.fullmatch, os.listdir(place)):
            with suppress(*UNREADABLE):
                if _is_own(name, place):
                    os.unlink(name, dir_fd=place)


def _is_own(name: str, directory: int) -> bool:
    """Return whether a file has spans, or nothing that a crash has left of them."""
    with open(name, "rb", opener=partial(regular, directory=directory)) as found:
        if not os.fstat(found.fileno()).st_size:
            return True
        with h5py.File(found, "r") as file:
            return bool(dataset(file, "spans").dtype == SPAN)


def read(directory: str | Path) -> list[RankSpans]:
    """Return the spans of a run's ranks, in the order of the ranks, given its directory.

    Raise UsageError if the run has none, and MpidlError if a file can't be read.
    """
    place = Path(directory) / DIRECTORY
    names: list[str] = []
    with suppress(OSError), open_directory(place) as held:
        names = sorted(filter(NAME.fullmatch, os.listdir(held)))
    if not names:
        raise UsageError(f"{directory}: no timeline, expected a finished run with run.trace = true")
    found: dict[int, RankSpans] = {}
    for each in map(_read, map(place.joinpath, names)):
        before = found.get(each.rank)
        if before is not None:  # another process has gone on with the rank
            spans = np.concatenate([before.spans, each.spans])
            each = replace(
                before, spans=spans[np.argsort(spans["start"], kind="stable")], dropped=before.dropped + each.dropped
            )
        found[each.rank] = each
    return [found[rank] for rank in sorted(found)]


def _read(path: Path) -> RankSpans:
    try:
        with opened(path) as file:
            own, stored = attributes(file), dataset(file, "spans")
            if stored.dtype != SPAN or stored.ndim != 1:
                raise OSError(f"spans of {stored.dtype}, expected {SPAN}")
            spans = stored[...]
            rank, role, host = int(own["rank"]), shown(str(own["role"]), 100), shown(str(own["host"]), 100)
            error, dropped = float(own["error"]), int(own["dropped"])
        times = np.concatenate([spans["start"], spans["end"]])
        if not np.isfinite(times).all() or (spans["kind"] < 0).any() or (spans["kind"] >= len(KINDS)).any():
            raise OSError("spans without a time or of no kind")
    except UNREADABLE as error_:
        raise MpidlError(f"{path}: not the timeline of a rank ({str(error_).splitlines()[0]})") from None
    return RankSpans(rank, role, host, spans, error, dropped)
