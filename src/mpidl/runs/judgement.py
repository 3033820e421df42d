"""What is said of a run's numbers, and what is kept away from it while it trains."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpidl.launch.output import say


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep away what would disturb a training.

    NumPy doesn't warn: a run looks at its losses itself, and says in one line if one is not finite. The garbage
    collector leaves alone what is there already, PyTorch for instance: looking through it takes as long as a step.
    """
    gc.freeze()
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            yield
    finally:
        gc.unfreeze()


def say_unchanged(summary: Mapping[str, Any]) -> None:
    """Say on stderr that a run has not changed its parameters, if it has pushed anything."""
    if summary["pushes"]:
        text = f"no parameter has changed in {summary['pushes']} pushes: is the rate 0, or every gradient?"
        say(text)
