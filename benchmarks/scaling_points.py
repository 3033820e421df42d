"""The points of benchmarks/scaling.py: configurations and records."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median
from typing import Any

from training import Job, fashion, with_sections

STRONG, WEAK, DDP_STRONG, DDP_WEAK = "strong", "weak", "DDP, strong", "DDP, weak"


@dataclass(frozen=True)
class Point:
    """A measurement; `workers` are replicas, or processes of DDP."""

    scaling: str
    hosts: int
    servers: int
    partitions: int
    workers: int

    @property
    def ddp(self) -> bool:
        """Whether it is one of PyTorch's DDP."""
        return self.scaling in (DDP_STRONG, DDP_WEAK)

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.workers if self.ddp else 1 + self.servers + self.workers * self.partitions

    def batch(self, whole: int) -> int:
        """Return the samples of a worker's minibatch."""
        return max(1, whole // self.workers) if self.scaling in (STRONG, DDP_STRONG) else whole


def job(point: Point, options: argparse.Namespace, batch: int | None = None) -> Job:
    """Return the configuration of a point, with `batch` samples in a minibatch if given."""
    sections = {
        "run": {"steps": options.steps * point.workers},
        "data": {"batch": batch or point.batch(options.batch)},
        "topology": {"servers": point.servers, "partitions": point.partitions},
    }
    if options.data is not None:
        return fashion(options.data, **sections)
    layers = [{"type": "dense", "units": 128, "activation": "relu"}, {"type": "dense", "units": 10}]
    return with_sections({"data": {"source": "digits"}, "model": {"layer": layers}}, **sections)


def point_of(record: dict[str, Any]) -> Point:
    """Return the point of a record."""
    return Point(*(record[name] for name in Point.__dataclass_fields__))


def speed_of(record: dict[str, Any]) -> float:
    """Return the samples/s of a point."""
    return median(run["samples_per_second"] for run in record["runs"])
