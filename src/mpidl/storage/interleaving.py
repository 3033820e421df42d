"""The interleaving of a run on ranks: the order of all batches, arrivals and fetches."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from mpidl.errors import UsageError
from mpidl.storage.files import cannot_write

FILE = "interleaving.h5"


class WorkerRecord:
    """Batches and fetches of one worker, in order."""

    def __init__(self) -> None:
        self._batches, self._fetches = array("q"), array("q")

    def took(self, portion: int, batch: int) -> None:
        """Note a batch by its portion and its number in that."""
        self._batches.extend((portion, batch))

    def fetched(self, received: list[int]) -> None:
        """Note a fetch by the number of chunks that each shard had received when it was read."""
        self._fetches.extend(received)

    def arrays(self, servers: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the batches, shape (n, 2), and the fetches, shape (m, servers), as int64."""
        fetches = np.array(self._fetches, np.int64)
        return np.array(self._batches, np.int64).reshape(-1, 2), fetches.reshape(-1, servers) if servers else fetches


class ServerRecord:
    """Arrivals at one server, in order."""

    def __init__(self) -> None:
        self._arrivals = array("q")

    def received(self, worker: int) -> None:
        """Note the arrival of a chunk."""
        self._arrivals.append(worker)

    def left(self, worker: int) -> None:
        """Note that no more pushes of a worker follow."""
        self._arrivals.append(-1 - worker)

    def arrays(self) -> np.ndarray:
        """Return the arrivals, shape (n,), as int64: w for a chunk of worker w, -1 - w for its end."""
        return np.array(self._arrivals, np.int64)


@dataclass(frozen=True)
class Interleaving:
    """The records of all ranks.

    Attributes
    ----------
    step : int
        Step of the checkpoint at which the recorded part of the run began.
    chunk : int
        Number of elements of a chunk.
    batches, fetches : list of array
        See `WorkerRecord.arrays`; an entry for each worker.
    arrivals : list of array
        See `ServerRecord.arrays`; an entry for each server.
    """

    step: int
    chunk: int
    batches: list[np.ndarray]
    fetches: list[np.ndarray]
    arrivals: list[np.ndarray]

    def save(self, run: Path) -> None:
        """Write ``interleaving.h5`` in a run's directory.

        Raises
        ------
        MpidlError
            The file can't be written.
        """
        try:
            with h5py.File(run / FILE, "w") as file:
                file.attrs.update(step=self.step, chunk=self.chunk)
                for number, (batches, fetches) in enumerate(zip(self.batches, self.fetches, strict=True)):
                    file[f"workers/{number}/batches"], file[f"workers/{number}/fetches"] = batches, fetches
                for number, arrivals in enumerate(self.arrivals):
                    file[f"servers/{number}/arrivals"] = arrivals
        except (OSError, RuntimeError) as error:
            raise cannot_write(run / FILE, error) from error

    @classmethod
    def load(cls, run: Path) -> Interleaving:
        """Read a run's ``interleaving.h5``.

        Raises
        ------
        UsageError
            There is no such file, or it is damaged.
        """
        try:
            with h5py.File(run / FILE) as file:
                workers = [file[f"workers/{number}"] for number in range(len(file["workers"]))]
                servers = [file[f"servers/{number}"] for number in range(len(file.get("servers", {})))]
                return cls(
                    int(file.attrs["step"]),
                    int(file.attrs["chunk"]),
                    [worker["batches"][...] for worker in workers],
                    [worker["fetches"][...] for worker in workers],
                    [server["arrivals"][...] for server in servers],
                )
        except (OSError, KeyError) as error:
            raise UsageError(
                f"{run}: no recorded interleaving to read ({FILE}); train with run.record = true"
            ) from error
