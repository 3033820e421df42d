"""Predictions of benchmarks/scaling.py, by a virtual cluster that is fitted to single workers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from statistics import median
from typing import Any, NamedTuple

from mpidl.config import from_dict
from mpidl.engines.virtual.times import Constant, Jitter, Times
from mpidl.job.build import build
from mpidl.job.planning import virtual_cut
from mpidl.partition.costs import Costs
from mpidl.runs.search import predict
from mpidl.topology.roles import assign
from scaling_points import WEAK, Point, job, point_of, speed_of
from training import with_sections

#: Most workers of a server where more are predicted than were measured.
FOR_A_SERVER = 20
#: Least and most bytes per second of a link between hosts, and steps of the bisection between them.
LINKS, HALVINGS = (1e5, 1e12), 16


class Fit(NamedTuple):
    """Parameters with which predictions of single workers are their measurements.

    Attributes
    ----------
    bandwidth : float
        Bytes per second between hosts.
    missing : float
        Seconds of a step on one host that are not in the measured durations.
    """

    bandwidth: float
    missing: float


def predicted(
    point: Point,
    singles: list[dict[str, Any]],
    options: argparse.Namespace,
    fit: Fit,
    cores: int | None = None,
    alone: list[dict[str, Any]] | None = None,
    seed: int = 0,
) -> float:
    """Return the samples/s on a virtual cluster with the durations of single workers' runs.

    Parameters
    ----------
    point
        The point to predict.
    singles
        The records of single workers. Durations come from the one with the same numbers of hosts and servers, or else
        from the first.
    fit
    cores
        Number of cores that all ranks share; each has its own if None.
    alone
        Runs of a single worker with the point's minibatches, if these are others.
    seed
        Seed of the random durations.
    """
    base = next((each for each in singles if same_place(point, each)), singles[0])
    measured, gradients = timing(base["runs"]), timing(alone or base["runs"])
    alone_on_host = timing(singles[0]["runs"])
    beside, away = (each["compute"] + fit.missing for each in (alone_on_host, measured))
    within = alone_on_host["bandwidth"] or float("inf")
    times = Times(
        compute=Jitter(gradients["compute"] + fit.missing, gradients["compute_deviation"]),
        service=Constant(measured["service"] * base["servers"] / point.servers),
        bandwidth=within if point.hosts == 1 else fit.bandwidth,
        memory_bandwidth=within,
        ranks_per_node=on_a_host(point) if cores is None else 1,
        cores=cores,
        slow=beside_servers(point, point_of(base), beside / away),
    )
    built = build(from_dict(with_sections(job(point, options), run={"seed": seed})))
    if point.partitions > 1:
        times = replace(times, cut=virtual_cut(built, Costs()))
    return predict(built, point.servers, point.workers, times).samples_per_second


def same_place(point: Point, record: dict[str, Any]) -> bool:
    """Return whether a record has the same numbers of hosts and servers."""
    return (point.hosts, point.servers) == (record["hosts"], record["servers"])


def on_a_host(point: Point) -> int:
    """Return the number of ranks on a host."""
    return -(-point.ranks // point.hosts)


def fitted(singles: list[dict[str, Any]], options: argparse.Namespace) -> Fit:
    """Fit the overhead of a step to the first single worker, and the link between hosts to the last one."""
    record, missing = singles[0], 0.0
    if record["hosts"] == 1:
        speed = predicted(point_of(record), singles, options, Fit(float("inf"), 0.0), record["cores"])
        missing = options.batch / speed_of(record) - options.batch / speed
    return Fit(link(singles, options, missing), missing)


def link(singles: list[dict[str, Any]], options: argparse.Namespace, missing: float) -> float:
    """Return the bytes per second between hosts with which the prediction for the last single worker is right.

    Without a server on another host, return those of its memory.
    """
    record = singles[-1]
    if not any(servers_elsewhere(point_of(record))):
        return timing(record["runs"])["bandwidth"] or float("inf")
    low, high = LINKS
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        slower = predicted(point_of(record), singles, options, Fit(middle, missing)) < speed_of(record)
        low, high = (middle, high) if slower else (low, middle)
    return high


def servers_elsewhere(point: Point) -> list[int]:
    """Return, for each worker, the number of servers on other hosts than its own."""
    nodes = [rank // on_a_host(point) for rank in range(point.ranks)]
    roles = assign(nodes, point.servers, point.partitions)
    return [sum(nodes[server] != nodes[ranks[0]] for server in roles.servers) for ranks in roles.replicas]


def beside_servers(point: Point, single: Point, factor: float) -> dict[int, float]:
    """Return `factor` for the workers whose servers are all on their host, if the single worker's are not.

    A worker computes slower while its messages pass a network.
    """
    if not any(servers_elsewhere(single)):
        return {}
    return {worker: factor for worker, far in enumerate(servers_elsewhere(point)) if not far}


def timing(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians of the durations in runs."""
    return {key: median(run["timing"][key] or 0.0 for run in runs) for key in runs[0]["timing"]}


def beyond(
    singles: list[dict[str, Any]], largest: int, options: argparse.Namespace, fit: Fit
) -> Iterator[dict[str, Any]]:
    """Yield predictions of weak scaling with more workers than were measured, a core for each rank."""
    base = singles[0]
    for workers in (each for each in options.beyond if each > largest):
        servers = max(base["servers"], -(-workers // FOR_A_SERVER))
        point = Point(WEAK, -(-(1 + servers + workers) // max(1, base["cores"])), servers, 1, workers)
        speed = predicted(point, singles, options, fit)
        print(f"{workers} workers, {servers} servers: {speed:.0f} samples/s predicted", file=sys.stderr, flush=True)
        yield asdict(point) | {"predicted": speed, "predicted efficiency": speed / workers / speed_of(base)}
