"""How long a job's gradients, messages and updates take, by what was measured: for virtual clusters and for plans."""

from __future__ import annotations

from mpidl.config.measured import Measured
from mpidl.engines.virtual.times import Constant, Jitter, Times
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.nn.capabilities import summaries
from mpidl.partition.costs import Costs

#: Bytes of gradient per second that a server applies, and deviation of the duration of gradients: where not measured.
UPDATE, DEVIATION = 2.5e9, 0.05
#: Cores of a node where not measured.
CORES = 1


def durations(job: Job, measured: Measured, shards: int, compute: float | None = None) -> Times:
    """Return the durations of a job on the nodes that were measured.

    If links between nodes were measured, each node has as many ranks as cores; else all ranks share one node's cores. A
    gradient takes `compute` seconds, by default those of the job's layers. Raise UsageError if it isn't known how many
    operations the model takes.
    """
    section, costs, node = job.config.virtual, measured.costs, measured.node
    cores = CORES if node is None else node.cores
    update = UPDATE if node is None else node.update
    spread = section.cores is None and (section.ranks_per_node is not None or measured.between is not None)
    latency, bandwidth = exchange(measured, costs, spread)
    return Times(
        compute=Jitter(gradient_seconds(job, costs) if compute is None else compute, DEVIATION),
        latency=Constant(latency),
        service=Constant(job.original.layout.size * job.dtype.itemsize / shards / update),
        bandwidth=bandwidth,
        memory_bandwidth=exchange(measured, costs, between=False)[1],
        ranks_per_node=cores if spread else 1,
        cores=None if spread else cores,
    )


def exchange(measured: Measured, costs: Costs, between: bool) -> tuple[float, float]:
    """Return the seconds of a message between a worker and a server, and bytes per second of its pushes and fetches."""
    link = measured.between if between else measured.within
    if link is None:
        return (costs.between_latency, costs.between_bandwidth) if between else (costs.latency, costs.bandwidth)
    # A replica pushes as many bytes as it fetches.
    bandwidth = 2 / (1 / link.push_bandwidth + 1 / link.fetch_bandwidth)
    return (link.push_latency + link.fetch_latency) / 2, bandwidth


def gradient_seconds(job: Job, costs: Costs) -> float:
    """Return the seconds of a gradient of the job's batch.

    Raise UsageError if it isn't known how many operations the model takes.
    """
    layers = summaries(job.original)
    if layers is None or not any(layer.operations for layer in layers):
        raise UsageError("virtual.compute: missing, expected the seconds of a gradient: this model's aren't known")
    return costs.gradient(layers, job.config.data.batch, job.dtype.itemsize)
