"""Training on a virtual cluster, in this process: ``mpidl simulate``."""

from __future__ import annotations

from typing import Any

from mpidl.config import Config
from mpidl.config.measured import read
from mpidl.job.build import build
from mpidl.job.durations import durations
from mpidl.launch.output import say
from mpidl.runs.one_process import OneProcess


def simulate(config: Config, replicas: int) -> dict[str, Any]:
    """Train the model of a configuration on the virtual cluster that it describes.

    Parameters
    ----------
    config : Config
    replicas : int
        Number of replicas.

    Returns
    -------
    dict
        The run's summary; its times are virtual.

    Raises
    ------
    MpidlError
        The run failed; the message is one line.
    """
    job, path, base = build(config), config.virtual.measurements(), None
    if path is not None:
        measured = read(path)
        base = durations(job, measured, config.servers or replicas)
        say(f"durations by {path}: {measured}")
    return OneProcess(job, replicas, config.virtual.times(replicas, base)).run()
