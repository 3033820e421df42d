"""Training on a virtual cluster: ``mpidl simulate``."""

from __future__ import annotations

from typing import Any

from mpidl.config import Config
from mpidl.job.build import build
from mpidl.runs.one_process import OneProcess
from mpidl.runs.signals import defer


def simulate(config: Config, replicas: int) -> dict[str, Any]:
    """Train as a configuration says on a virtual cluster of so many replicas, in this process.

    Returns
    -------
    dict
        The run's summary, in virtual time.

    Raises
    ------
    MpidlError
        What the run met; one line.
    """
    defer()
    return OneProcess(build(config), replicas, config.virtual.times(replicas)).run()
