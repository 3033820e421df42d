"""Training on a virtual cluster, in this process: ``mpidl simulate``."""

from __future__ import annotations

from typing import Any

from mpidl.config import Config
from mpidl.job.build import build
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
    return OneProcess(build(config), replicas, config.virtual.times(replicas)).run()
