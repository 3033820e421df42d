"""A trained model in its checkpoint: names and arrays, without the model itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np

from mpidl.errors import MpidlError, UsageError
from mpidl.storage.checkpoint import Checkpoint, arrays
from mpidl.storage.checkpoints import latest, step_of, steps
from mpidl.storage.files import INDEX, cannot_read, replica_file
from mpidl.storage.integrity import verify


@dataclass(frozen=True)
class Trained:
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
        Integers that a replica counts, such as batches seen; those of replica 0.
    """

    parameters: dict[str, np.ndarray]
    aliases: dict[str, str]
    constants: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """All arrays under all their names, as in an exported file; an alias is the same array."""
        shared = {alias: self.parameters[name] for alias, name in self.aliases.items()}
        return self.parameters | shared | self.constants | self.buffers


def checkpoint_of(
    run: Path,
    step: int | str | None = None,
    rank: int = 0,
    gather: Callable[[Any], list[Any]] = lambda value: [value],
) -> Checkpoint:
    """Return a checkpoint of a run, checked byte for byte; collective over the ranks that share the work.

    By default it is the newest undamaged one, and stderr names those passed over. `rank` and `gather` are as for
    `mpidl.storage.checkpoints.newest_good`. Every rank raises the same error: UsageError if there is no checkpoint, or
    none of that step, MpidlError if it is damaged or a file can't be read.
    """
    if step is None:
        return latest(run, rank, gather)
    path, size = run, len(gather(None))
    error: MpidlError | None = None
    try:
        step = step_of(run, step)
        path = run / "checkpoints" / str(step)
        if not (path / INDEX).exists():
            raise _absent(run, step)
        verify(path, rank, size)
    except MpidlError as caught:
        error = caught
    for each in gather(error):
        if each is not None:
            raise each
    return Checkpoint(path)


def read(checkpoint: Checkpoint) -> Trained:
    """Return the trained model of a checkpoint; raise MpidlError if a file can't be read."""
    index, replica = checkpoint.path / INDEX, checkpoint.path / replica_file(0)
    try:
        with h5py.File(index) as file:
            aliases = msgspec.json.decode(file.attrs.get("aliases", "{}"))
    except OSError as error:
        raise cannot_read(index, error) from error
    buffers = arrays(replica, "buffers") if replica.exists() else {}
    return Trained(arrays(index, "parameters"), aliases, arrays(index, "constants"), buffers)


def _absent(run: Path, step: int | str) -> UsageError:
    """Return the error for a missing checkpoint."""
    found = steps(run / "checkpoints")
    there = f"those of {', '.join(map(str, found))}" if found else "none"
    return UsageError(f"{run}: no checkpoint of step {step}, there are {there}")
