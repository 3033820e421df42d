"""Replaying a recorded run on ranks in one process: ``mpidl simulate --replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mpidl.config import load
from mpidl.engines.replay import ReplayEngine
from mpidl.errors import MpidlError
from mpidl.job.build import build
from mpidl.job.fill import fill
from mpidl.job.place import place
from mpidl.job.slices import shards_of
from mpidl.job.training import training_of
from mpidl.parameters import Range
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import steps
from mpidl.storage.integrity import verify
from mpidl.storage.interleaving import Interleaving


def replay(run: Path) -> dict[str, Any]:
    """Replay a recorded run on ranks in this process, and compare the parameters at its end.

    Parameters
    ----------
    run : Path
        ``runs/NAME``, recorded with ``run.record = true``.

    Returns
    -------
    dict
        run_dir; step; gradients, how many were computed; difference, the largest of any parameter; equal, whether the
        parameters are the same bit for bit.

    Raises
    ------
    UsageError
        There is no record, or it is damaged.
    MpidlError
        One of these checkpoints is damaged, or the run was deterministic, and its replay differs.
    """
    interleaving, config = Interleaving.load(run), load(run / "config.toml")
    last = max(steps(run / "checkpoints"), default=interleaving.step)
    beginning, end = _undamaged(run, interleaving.step), _undamaged(run, last)
    job = build(config, beginning)
    place(job)
    job.replicas = len(interleaving.batches)
    ranges = shards_of(job, len(interleaving.arrivals) or job.replicas)
    parts = [fill(job, part, np.empty(part.size, job.dtype), interleaving.chunk) for part in ranges]
    engine = ReplayEngine(training_of(job), parts, interleaving)
    gradients = engine.run()
    found, expected = engine.parameters(), end.read("parameters", Range(0, end.size), job.layout)
    difference, equal = float(np.abs(found - expected).max()), bool(np.array_equal(found, expected))
    if config.run.deterministic and not equal:
        raise MpidlError(f"{run}: the run was deterministic, and its replay differs from {end.path} by {difference:g}")
    return {
        "run_dir": str(run),
        "step": end.position.step,
        "gradients": gradients,
        "difference": difference,
        "equal": equal,
    }


def _undamaged(run: Path, step: int) -> Checkpoint:
    """Return a checkpoint that no older one can stand in for."""
    path = run / "checkpoints" / str(step)
    verify(path)
    return Checkpoint(path)
