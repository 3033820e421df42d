"""``best.json``: which of a run's checkpoints is the best, and by which figure."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from mpidl.errors import MpidlError, UsageError

#: Name of the file in a run's directory.
BEST = "best.json"


class Best(msgspec.Struct, frozen=True):
    """The best checkpoint of a run.

    The parameters are evaluated while replicas train on, and the checkpoint is ordered when the figure is known: it may
    be of a few batches later. At the end of a run, it is of the very parameters that were evaluated.

    Attributes
    ----------
    step : int
        The checkpoint's step.
    figure : str
        The figure, such as "validation_loss".
    value : float
        Its value.
    epoch : float
        Number of epochs that were trained before the evaluation.
    """

    step: int
    figure: str
    value: float
    epoch: float


def read_best(run: Path) -> Best | None:
    """Return the best checkpoint of the run in a directory; None if it has named none.

    Raises
    ------
    MpidlError
        The file can't be read.
    """
    path = run / BEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Best)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise MpidlError(f"{path}: can't be read: {error}") from error


def write_best(run: Path, best: Best) -> None:
    """Name the best checkpoint of the run in a directory; the file changes as a whole.

    Raises
    ------
    MpidlError
        The file can't be written.
    """
    path, temporary = run / BEST, run / f".{BEST}"
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(best) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise MpidlError(f"{path}: can't be written: {error.strerror}") from error


def step_of(run: Path, step: int | str) -> int:
    """Return a step, given as a number or as ``"best"``.

    Raises
    ------
    UsageError
        It is something else, or the run has no best checkpoint.
    """
    if step == "best":
        best = read_best(run)
        if best is None:
            raise UsageError(f"{run}: no best checkpoint: run.patience or validation data make a run name one")
        return best.step
    if not str(step).isdecimal():
        raise UsageError(f"step: expected a number or 'best', found {step!r}")
    return int(step)
