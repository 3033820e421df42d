"""The section ``[virtual]``: durations on a simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpidl.engines.virtual.times import Death, Distribution, Times, parse
from mpidl.errors import UsageError, quoted
from mpidl.paths import measured_file, user_path
from mpidl.schema import Checked, Count, Natural, Positive

#: Seconds until the process of another rank plays one that has died: to notice it, and to bind its memory.
TAKEOVER = 0.1
#: Seconds from a failure that ends a job until all ranks train again; measured with 4 ranks on a loaded machine.
RESTART = 20.0


@dataclass(frozen=True)
class Slow(Checked):
    """``[[virtual.slow]]``: a slow replica.

    Attributes
    ----------
    replica : int
        Number of the replica, from 0.
    factor : float
        Factor of the time of its gradients.
    """

    replica: Natural
    factor: Positive = 10.0


@dataclass(frozen=True)
class VirtualSection(Checked):
    """``[virtual]``: durations on a simulated cluster.

    Attributes
    ----------
    calibration : str, optional
        Directory of a real run, or a file of ``mpidl doctor --save``, with measurements for keys that aren't given
        here. What it doesn't have is taken from the user's own file, or else assumed.
    compute, latency, service : str or float, optional
        Seconds of a gradient, of a message between a replica and a server regardless of its size, and of a server's
        work on a push: a number, "constant:SECONDS", "jitter:MEAN:DEVIATION", "uniform:LOW:HIGH" or
        "exponential:MEAN".
    bandwidth : float, optional
        Bytes per second of a node's network card, in each direction, shared fairly by simultaneous messages. With
        `cores`, bytes per second of a copy.
    memory_bandwidth : float, optional
        Bytes per second between ranks of one node.
    ranks_per_node : int, optional
        Number of consecutive ranks on each node; each rank has its own node if not given.
    cores : int, optional
        Number of cores of one node that all ranks share; each rank has its own if not given.
    failures, node_failures : str or float, optional
        Seconds between two failures of a rank, and between two of a node, with which all of its ranks die: as above,
        "exponential:86400" for a failure a day. A failure without a takeover (`topology.survive`) ends the job,
        which starts again from the last checkpoint (`checkpoint.every`).
    restart : str or float
        Seconds from such a failure until all ranks train again.
    slow : tuple of Slow
        ``[[virtual.slow]]``: slow replicas.
    death : tuple of Death
        ``[[virtual.death]]``: replicas that die, and may return.
    """

    calibration: str | None = None
    compute: str | float | None = None
    latency: str | float | None = None
    service: str | float | None = None
    bandwidth: Positive | None = None
    memory_bandwidth: Positive | None = None
    ranks_per_node: Count | None = None
    cores: Count | None = None
    failures: str | float | None = None
    node_failures: str | float | None = None
    restart: str | float = RESTART
    slow: tuple[Slow, ...] = ()
    death: tuple[Death, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("compute", "latency", "service", "failures", "node_failures", "restart"):
            found = self.distribution(key)
            if "failures" in key and found is not None and found.mean <= 0:
                raise UsageError(f"{key}: {quoted(str(getattr(self, key)))}, expected more than 0 seconds on average")
        if self.ranks_per_node is not None and self.cores is not None:
            raise UsageError(
                f"ranks_per_node: {self.ranks_per_node}, can't be combined with cores, which is for one node"
            )

    def distribution(self, key: str) -> Distribution | None:
        """Return the distribution that a key describes; None if it isn't given."""
        found = getattr(self, key)
        return None if found is None else parse(str(found), key)

    def measurements(self) -> Path | None:
        """Return the file of ``mpidl doctor --save`` to take durations from, if any."""
        given = None if self.calibration is None else user_path(self.calibration)
        file = given if given is not None and given.is_file() else measured_file()
        return file if file.is_file() else None

    def times(self, replicas: int, measured: Times) -> Times:
        """Return the durations on a cluster of `replicas`; those that aren't given are `measured`.

        Raise UsageError if a section names a replica that doesn't exist.
        """
        of_replicas: list[Slow | Death] = [*self.slow, *self.death]
        for section in of_replicas:
            if section.replica >= replicas:
                kind = type(section).__name__.lower()
                raise UsageError(
                    f"virtual.{kind}: replica {section.replica}, there are {replicas} (0 to {replicas - 1})"
                )
        return Times(
            compute=self.distribution("compute") or measured.compute,
            latency=self.distribution("latency") or measured.latency,
            service=self.distribution("service") or measured.service,
            bandwidth=self.bandwidth or measured.bandwidth,
            memory_bandwidth=self.memory_bandwidth or measured.memory_bandwidth,
            ranks_per_node=self.ranks_per_node or measured.ranks_per_node,
            cores=self.cores or measured.cores,
            slow={section.replica: section.factor for section in self.slow},
            deaths=self.death,
        )
