"""A trained model in its checkpoint: names and arrays, without the model itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpidl.errors import MpidlError, UsageError, outcome
from mpidl.storage.checkpoint import Checkpoint, arrays
from mpidl.storage.checkpoints import latest, step_of, steps
from mpidl.storage.files import INDEX
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
    if not (path / INDEX).exists():
        found = steps(run / "checkpoints")
        there = f"those of {', '.join(map(str, found))}" if found else "none"
        raise UsageError(f"{run}: no checkpoint of step {step}, there are {there}")
    verify(path, rank, size)
    return path


def read(checkpoint: Checkpoint) -> Trained:
    """Return the trained model of a checkpoint; raise MpidlError if a file can't be read."""
    parameters = arrays(checkpoint.path / INDEX, "parameters")
    return Trained(parameters, checkpoint.aliases, checkpoint.constants(), checkpoint.buffers())
