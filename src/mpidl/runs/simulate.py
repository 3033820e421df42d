"""Training on a virtual cluster, in this process: ``mpidl simulate``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mpidl.config import Config
from mpidl.config.measured import read
from mpidl.job.build import build
from mpidl.job.durations import durations
from mpidl.job.planning import virtual_cut
from mpidl.launch.output import say
from mpidl.partition.costs import Costs
from mpidl.runs.features import virtual_intermediaries
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
    UsageError
        The job can't be built.
    MpidlError
        The run failed; the message is one line.
    """
    job, path, base, costs = build(config), config.virtual.measurements(), None, Costs()
    if path is not None:
        measured = read(path)
        base, costs = durations(job, measured, config.servers or replicas), measured.costs
        say(f"durations by {path}: {measured}")
    times = config.virtual.times(replicas, base)
    times = replace(times, messages=config.topology.messages, intermediaries=virtual_intermediaries(config.topology))
    if config.topology.partitions > 1:
        times = replace(times, cut=virtual_cut(job, costs))
    return OneProcess(job, replicas, times).run()
