"""What is said of a run's numbers, and what NumPy need not say of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np


def unwarned() -> AbstractContextManager[None]:
    """Keep NumPy from warning: a run looks at its losses itself, and says in one line if one is not finite."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")


def say_unchanged(summary: Mapping[str, Any]) -> None:
    """Say on stderr that a run has not changed its parameters, if it has pushed anything."""
    if summary["pushes"]:
        text = f"no parameter has changed in {summary['pushes']} pushes: is the rate 0, or every gradient?"
        print(f"mpidl: {text}", file=sys.stderr, flush=True)
