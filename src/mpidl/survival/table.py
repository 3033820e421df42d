"""The processes of a job on one node, and the ranks that each of them plays, in memory that outlives them all."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

import numpy as np

from mpidl.launch.shared_memory import own_directory


class ProcessState(IntEnum):
    """The state of a process."""

    ALIVE = 0
    LEFT = 1  # it ends, or has ended, because its work is done
    DEAD = 2


class ProcessStage(IntEnum):
    """How far a process has come."""

    PREPARING = 0
    TRAINING = 1
    CLOSING = 2  # the run is over, and its summary written


#: Most incidents for each process.
INCIDENTS = 8
#: What has happened: the death of the process that played a rank (`by` < 0), or the rank's takeover by another one.
INCIDENT = np.dtype(
    [
        ("rank", np.int64),
        ("by", np.int64),
        ("code", np.int64),  # of the process's end, as that of `subprocess.Popen`; 0 if unknown
        ("time", np.float64),  # of the notice, in seconds since the epoch; of a takeover, the seconds since the notice
        ("workers", np.int64),  # that live
        ("chunks", np.int64),  # lost, of pushes
        ("drained", np.int64),  # whether the process has handed its rank over, and not died
    ]
)
#: Numbers of each process.
ROWS = 7


class ProcessTable:
    """A table of as many processes as ranks; a process is numbered by the rank that it plays at first.

    Of several processes that want to change it, the one in `locked` does; the system unlocks it if that one dies.

    Parameters
    ----------
    path : Path
        A file that `create` has made.
    size : int

    Attributes
    ----------
    pids, states, stages : array (size,) of int64
        The identity, the `ProcessState` and the `ProcessStage` of each process.
    processes : array (size,) of int64
        The process that plays each rank.
    batches : array (3, size) of int64
        The rows of `mpidl.survival.watch.Pace`.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        memory = np.frombuffer(mmap.mmap(self._file, _nbytes(size)), np.int64)
        self._numbers, rows = memory[:2], memory[2 : 2 + ROWS * size].reshape(ROWS, size)
        self._incidents = memory[2 + ROWS * size :].view(INCIDENT)
        (self.pids, self.states, self.stages, self.processes), self.batches = rows[:4], rows[4:]
        self._own = threading.Lock()

    @staticmethod
    def create(size: int) -> Path:
        """Make the file of a table in which all processes are alive; it may be removed once all have opened it."""
        path = own_directory() / secrets.token_hex(8)
        content = np.zeros(_nbytes(size) // 8, np.int64)
        content[2 + 3 * size : 2 + 4 * size] = np.arange(size)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content.tobytes())
        return path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all other processes, and threads of this one, out of such a context."""
        with self._own:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def failed(self) -> bool:
        """Whether all processes are to end, because the job can't go on."""
        return bool(self._numbers[0])

    def fail(self) -> bool:
        """Let the job end; return whether it hadn't failed before."""
        before, self._numbers[0] = self.failed, 1
        return not before

    def note(self, **values: float) -> None:
        """Note an incident, by the fields of `INCIDENT`; those beyond `INCIDENTS` for each process are not noted."""
        count = int(self._numbers[1])
        if count < len(self._incidents):
            for name, value in values.items():
                self._incidents[name][count] = value
            self._numbers[1] = count + 1

    def incidents(self, known: int = 0) -> np.ndarray:
        """Return the incidents but for the first `known`, as an array of `INCIDENT`."""
        return self._incidents[known : self._numbers[1]]

    @property
    def alive(self) -> list[int]:
        """The processes that are alive."""
        processes: list[int] = np.flatnonzero(self.states == ProcessState.ALIVE).tolist()
        return processes

    @property
    def deaths(self) -> int:
        """The number of processes that have died."""
        return int((self.states == ProcessState.DEAD).sum())

    def played_by(self, process: int) -> list[int]:
        """Return the ranks that a process plays."""
        ranks: list[int] = np.flatnonzero(self.processes == process).tolist()
        return ranks

    def orphans(self) -> list[int]:
        """Return the ranks whose processes are dead."""
        ranks: list[int] = np.flatnonzero(self.states[self.processes] == ProcessState.DEAD).tolist()
        return ranks


def _nbytes(size: int) -> int:
    return 8 * (2 + ROWS * size) + INCIDENTS * size * INCIDENT.itemsize
