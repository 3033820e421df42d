"""Training on a virtual cluster, in this process: ``mpidl simulate``."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

from mpidl.config import Config
from mpidl.config.cluster import TAKEOVER
from mpidl.engines.virtual import Times
from mpidl.engines.virtual.machines import place_ranks
from mpidl.engines.virtual.times import Failures
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.durations import JobDurations
from mpidl.job.job import Job
from mpidl.job.planning import virtual_cut
from mpidl.job.takeover import fixed, fixed_by_job
from mpidl.launch.output import say
from mpidl.report.summary import Summary
from mpidl.report.text import duration
from mpidl.runs.features import virtual_intermediaries
from mpidl.runs.one_process import OneProcess

#: The directory of virtual runs, within that of all runs: none is taken for a real run of its name.
DIRECTORY = "virtual"


def simulate(config: Config, replicas: int) -> Summary:
    """Train the model of a configuration on the virtual cluster that it describes.

    Parameters
    ----------
    config : Config
    replicas : int
        Number of replicas.

    Returns
    -------
    Summary
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
    job, durations = build(config), JobDurations.known(config.virtual)
    if not durations.gradient_given and durations.path is None:
        expected = "the seconds of a gradient, or virtual.calibration, or figures of `mpidl doctor --save`"
        raise UsageError(f"virtual.compute: missing, expected {expected}")
    topology = config.topology
    times = replace(
        durations.times(job, config.servers, replicas),
        intermediaries=virtual_intermediaries(topology),
        cut=virtual_cut(job, durations.measured.costs),
        standby=topology.standby,
    )
    times, consequences = _with_failures(job, times, replicas)
    run = OneProcess(job, replicas, times)
    # A run that is refused says that alone.
    say(f"durations: {durations}")
    if consequences:
        say(consequences)
    return run.run()


def _with_failures(job: Job, times: Times, replicas: int) -> tuple[Times, str]:
    """Return the times with the failures that the configuration describes, and a line about what follows from them."""
    config, section = job.config, job.config.virtual
    of_rank, of_node = section.distribution("failures"), section.distribution("node_failures")
    if of_rank is None and of_node is None:
        return times, ""
    nodes, roles = place_ranks(times, replicas, config.servers)
    found, restart = fixed(config, roles, len(set(nodes))) | fixed_by_job(job), section.distribution("restart")
    assert restart is not None
    every = min(config.checkpoint.every, config.topology.mirror or inf)
    failures = Failures(
        of_rank, of_node, every, times.service.mean, TAKEOVER, restart,
        fixed=found, min_workers=config.topology.min_workers,
    )  # fmt: skip
    rate = sum(len(of) / each.mean for each, of in ((of_rank, nodes), (of_node, set(nodes))) if each is not None)
    line = f"failures: one every {duration(1 / rate)}"
    if found.all is not None:
        line += f"; each starts the job again, from the last checkpoint: {found.all}"
    return replace(times, failures=failures), line
