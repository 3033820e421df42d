"""Training on a virtual cluster, in this process: ``mpidl simulate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mpidl.config import Config
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.durations import Durations
from mpidl.job.planning import virtual_cut
from mpidl.launch.output import say
from mpidl.runs.features import virtual_intermediaries
from mpidl.runs.one_process import OneProcess

#: The directory of virtual runs, within that of all runs: none is taken for a real run of its name.
DIRECTORY = "virtual"


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
    if (first := config.algorithm.warm_start_run()) is not None:
        raise UsageError(f"algorithm.warm_start: {first.epochs}, expected 0: virtual clusters have no warm start")
    config = replace(config, run=replace(config.run, dir=str(Path(config.run.dir) / DIRECTORY)))
    job, durations = build(config), Durations.known(config.virtual)
    if not durations.gradient_given and durations.path is None:
        expected = "the seconds of a gradient, or virtual.calibration, or figures of `mpidl doctor --save`"
        raise UsageError(f"virtual.compute: missing, expected {expected}")
    times = durations.times(job, config.servers or replicas, replicas)
    times = replace(times, messages=config.topology.messages, intermediaries=virtual_intermediaries(config.topology))
    if config.topology.partitions > 1:
        times = replace(times, cut=virtual_cut(job, durations.measured.costs))
    run = OneProcess(job, replicas, times)
    # A run that is refused says that alone.
    say(f"durations: {durations}")
    return run.run()
