"""Durations of a job's gradients, messages and updates, given, measured or assumed: for virtual clusters and plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from mpidl.config.cluster import VirtualSection
from mpidl.config.measured import Measured, read
from mpidl.engines.virtual.times import Constant, Jitter, Times
from mpidl.errors import UsageError
from mpidl.history import Run
from mpidl.job.job import Job
from mpidl.nn.matrices import matrices
from mpidl.partition.costs import Costs
from mpidl.paths import user_path
from mpidl.schema import Natural, NonNegative, Positive

#: Bytes of gradient per second that a server applies, and deviation of the duration of gradients: where not measured.
UPDATE, DEVIATION = 2.5e9, 0.05
#: Cores of a node where not measured.
CORES = 1


@dataclass(frozen=True)
class JobDurations:
    """What is known of a job's durations: the keys of ``[virtual]`` first, then measurements, then typical figures.

    Attributes
    ----------
    section : VirtualSection
    measured : Measured
        The measurements of the file at `path`, if there is one.
    path : Path or None
    run : Calibration or None
        The measurements of a real run.
    """

    section: VirtualSection
    measured: Measured
    path: Path | None = None
    run: Calibration | None = None

    @classmethod
    def known(cls, section: VirtualSection) -> JobDurations:
        """Read what was measured; raise UsageError if it can't be read, or a run has no measurements."""
        path = section.measurements()
        given = None if section.calibration is None else user_path(section.calibration)
        run = None if given is None or given.is_file() else calibrate(Run(given))
        return cls(section, Measured() if path is None else read(path), path, run)

    @property
    def gradient_given(self) -> bool:
        """Whether the duration of a gradient is given or was measured, and need not be that of the job's layers."""
        return self.section.compute is not None or self.run is not None

    def __str__(self) -> str:
        """Their origin, and the typical figures of what is neither given nor measured."""
        section, run, node, spread = self.section, self.run, self.measured.node, self._spread
        link, (latency, bandwidth) = self.measured.between if spread else self.measured.within, self._exchange(spread)
        of_run = run is not None and run.timing.bandwidth and run.one_node is not spread
        of_servers = run is not None and run.timing.service
        figures = {
            f"gradients of {Costs.flops / 1e9:g} Gflop/s": self.gradient_given or node,
            f"{'a network' if spread else 'memory'} of {bandwidth / 1e9:g} GB/s": link or section.bandwidth or of_run,
            f"messages of {1e6 * latency:g} us": link or section.latency is not None,
            f"servers that apply {UPDATE / 1e9:g} GB/s": node or section.service is not None or of_servers,
        }
        assumed = ", ".join(figure for figure, known in figures.items() if not known)
        sources = {
            "the section [virtual]": section.compute is not None,
            f"the run {section.calibration}": run,
            f"{self.path}: {self.measured}": self.path,
            f"assumed, as `mpidl doctor --save` would measure them: {assumed}": assumed,
        }
        return "; ".join(source for source, used in sources.items() if used)

    def times(self, job: Job, shards: int, replicas: int) -> Times:
        """Return the durations of a job on a cluster of `replicas`, with a number of shards or, if 0, one for each.

        Raise UsageError if it isn't known how many operations the model takes, or a section names a replica that
        doesn't exist.
        """
        times = self.section.times(replicas, self._measured_or_assumed(job, shards or replicas))
        return replace(times, messages=job.config.topology.messages)

    def _measured_or_assumed(self, job: Job, shards: int) -> Times:
        """Return the durations without those that the section gives.

        If a gradient's duration is given, each rank has its own node. Otherwise, if links between nodes were measured,
        each node has as many ranks as cores; else all ranks share one node's cores.
        """
        node, run, spread = self.measured.node, self.run, self._spread
        cores = CORES if node is None else node.cores
        latency, bandwidth = self._exchange(spread)
        service = job.original.layout.size * job.dtype.itemsize / (UPDATE if node is None else node.update)
        if (rule := job.config.tensor_rule) is not None and rule is job.config.rule:
            found = matrices(job.config.model.group, job.original)
            operations = sum(rule.operations(*each.shape) for each in found.values())
            service += operations / self.measured.costs.flops
        if run is not None and run.timing.service:
            service = run.timing.service * max(1, run.servers)
        if self.section.compute is not None:
            compute = Jitter(0.0, 0.0)  # The section's own counts.
        elif run is not None:
            compute = Jitter(run.timing.compute, run.timing.compute_deviation)
        else:
            compute = Jitter(self._gradient(job), DEVIATION)
        return Times(
            compute=compute,
            latency=Constant(latency),
            service=Constant(service / shards),
            bandwidth=bandwidth,
            memory_bandwidth=self._exchange(between=False)[1],
            ranks_per_node=cores if spread and not self.gradient_given else 1,
            cores=None if spread else cores,
        )

    def _gradient(self, job: Job) -> float:
        layers = job.original.summaries()
        if layers is None or not any(layer.operations for layer in layers):
            raise UsageError("virtual.compute: missing, expected the seconds of a gradient: this model's aren't known")
        return self.measured.costs.gradient(layers, job.config.data.batch, job.dtype.itemsize)

    @property
    def _spread(self) -> bool:
        """Whether ranks are spread over nodes, and don't share the cores of one."""
        on_nodes = self.gradient_given or self.section.ranks_per_node is not None or self.measured.between is not None
        return self.section.cores is None and on_nodes

    def _exchange(self, between: bool) -> tuple[float, float]:
        """Return the seconds of a message between a worker and a server, and bytes/s of its pushes and fetches."""
        costs, link = self.measured.costs, self.measured.between if between else self.measured.within
        found = (costs.between_latency, costs.between_bandwidth) if between else (costs.latency, costs.bandwidth)
        if link is not None:
            # A replica pushes as many bytes as it fetches.
            bandwidth = 2 / (1 / link.push_bandwidth + 1 / link.fetch_bandwidth)
            found = (link.push_latency + link.fetch_latency) / 2, bandwidth
        if self.run is not None and self.run.timing.bandwidth and self.run.one_node is not between:
            found = found[0], self.run.timing.bandwidth
        return found


class Timing(msgspec.Struct):
    """The durations of `mpidl.engines.totals.timing`.

    `service` is the mean of seconds of a server's work on a push. `bandwidth` is that of pushes and fetches in bytes
    per second, None if there were none.
    """

    compute: Positive
    compute_deviation: NonNegative
    service: NonNegative
    bandwidth: Positive | None


class Calibration(msgspec.Struct):
    """What the summary of a run on MPI ranks says about its durations."""

    timing: Timing
    servers: Natural = 1
    hosts: dict[str, int] | list[str] = {}

    @property
    def one_node(self) -> bool:
        """Whether the bandwidth is that within a node."""
        return len(self.hosts) <= 1


def calibrate(run: Run) -> Calibration:
    """Return the durations measured by a run on MPI ranks.

    Raise UsageError if the run has no summary with measurements.
    """
    try:
        return msgspec.convert(run.summary, Calibration)
    except msgspec.ValidationError as error:
        why = error if run.summary else next(iter(run.unread), "no summary.json")
        raise UsageError(f"virtual.calibration: {run.directory} has no measurements of a run on ranks: {why}") from None
