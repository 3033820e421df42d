"""``wire = "auto"``: the format in which an exchange is short beside the computing, both measured on the ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.algorithms import AUTO
from mpidl.job.job import Job
from mpidl.job.rehearsal import first_gradient
from mpidl.runs.prediction import exchanges_every
from mpidl.topology.roles import Roles
from mpidl.wire import encoded_bytes, parse
from mpidl.wire.differences import CHUNK

#: Formats of pushes and of fetches, from what loses nothing to what loses most. Sparse formats lose less than signs,
#: but to find the largest elements takes several times as long.
FORMATS = (("fp32", "fp32"), ("bf16", "bf16"), ("int8", "int8"), ("onebit", "onebit"))
#: The keys that may leave them open, in the order of the pairs.
KEYS = ("wire", "wire_fetch")
#: How long an exchange may take, as a part of the computing between two.
SHARE = 1.0
#: Most bytes between a worker and a server while they are measured, and of all workers in one server's memory.
PROBE, PROBES = 4 << 20, 256 << 20


def choose_wire(comm: MPI.Intracomm, roles: Roles, job: Job, nodes: Sequence[int]) -> None:
    """Choose the formats that the configuration leaves open, and note them; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    roles : Roles
    job : Job
        Its algorithm is replaced by one with the formats.
    nodes : sequence of int
        The node of each rank, as a number.
    """
    algorithm = job.algorithm
    keys = [key for key in KEYS if getattr(algorithm, key) == AUTO]
    if not keys:
        return
    if len(set(nodes)) == 1:
        pair, reason = FORMATS[0], "all ranks are on one node"
    else:
        exchange, computing = _exchange_seconds(comm, roles, job), _computing_seconds(comm, roles, job)
        coding = [_coding_seconds(comm, roles, job, pair) for pair in FORMATS]
        pair = choose(exchange, computing, coding, job.dtype)
        reason = (
            f"an exchange as it is takes {exchange * 1e3:.3g} ms, the computing between two {computing * 1e3:.3g} ms"
        )
    chosen: dict[str, Any] = {key: pair[KEYS.index(key)] for key in keys}
    job.choose(replace(algorithm, **chosen, wire_within_nodes=False))
    job.notes.append(f"{', '.join(f'{key} = {wire}' for key, wire in chosen.items())}: {reason}")


def choose(exchange: float, computing: float, coding: Sequence[float], dtype: Any) -> tuple[str, str]:
    """Return the first pair with which an exchange is short or, if it is with none, that with which it is shortest.

    Parameters
    ----------
    exchange : float
        Seconds that an exchange travels as it is.
    computing : float
        Seconds of computing between two.
    coding : sequence of float
        Seconds that encoding and decoding take, for each pair of `FORMATS`.
    dtype : dtype
    """
    seconds = [
        exchange * sum(_part(name, dtype) for name in pair) / 2 + own for pair, own in zip(FORMATS, coding, strict=True)
    ]
    short = [number for number, each in enumerate(seconds) if each <= SHARE * computing]
    return FORMATS[short[0] if short else int(np.argmin(seconds))]


def _fetchers(roles: Roles) -> list[int]:
    """Return the ranks that exchange with servers: workers and relays."""
    return sorted({rank for partition in range(len(roles.replicas[0])) for rank in roles.fetchers(partition)})


def _elements(roles: Roles, job: Job) -> float:
    """Return the most elements that one of them exchanges: a relay has the slices of all partitions."""
    return job.layout.size / (1 if roles.relays else len(job.slices))


def _part(name: str, dtype: Any) -> float:
    """Return what part of the bytes of a vector a format needs."""
    wire, size = parse(name), 1 << 20
    return 1.0 if wire is None else encoded_bytes(wire, size, dtype) / (size * np.dtype(dtype).itemsize)


def _exchange_seconds(comm: MPI.Intracomm, roles: Roles, job: Job) -> float:
    """Return how long a push and a fetch of all that exchange with servers at once take, by plain messages."""
    fetchers = _fetchers(roles)
    whole = _elements(roles, job) * job.dtype.itemsize / len(roles.servers)
    size = max(1, int(min(whole, PROBE, PROBES // len(fetchers))))
    others = roles.servers if comm.rank in fetchers else fetchers if comm.rank in roles.servers else []
    sent, received = np.zeros(size, np.uint8), np.empty((len(others), size), np.uint8)
    seconds = 0.0
    for _ in range(2):  # The first time, connections are made.
        comm.Barrier()
        started = time.perf_counter()
        requests = [comm.Irecv(row, rank) for row, rank in zip(received, others, strict=True)]
        requests += [comm.Isend(sent, rank) for rank in others]
        MPI.Request.Waitall(requests)
        seconds = time.perf_counter() - started
    return float(comm.allreduce(seconds, op=MPI.MAX)) * whole / size


def _coding_seconds(comm: MPI.Intracomm, roles: Roles, job: Job, pair: tuple[str, str]) -> float:
    """Return how long a worker or relay, and the servers, each of which serves all, encode and decode an exchange."""
    values = np.random.default_rng(0).normal(size=CHUNK).astype(job.dtype)
    encoding, decoding = np.transpose([_coding(name, values) for name in pair])
    # A server adds to its copy what it has encoded, as the worker does.
    worker, server = encoding[0] + decoding[1], decoding[0] + encoding[1] + decoding[1]
    of_all = worker + server * len(roles.fetchers()) / len(roles.servers)
    seconds = of_all * _elements(roles, job) / CHUNK
    return float(comm.allreduce(float(seconds), op=MPI.MAX))


def _coding(name: str, values: np.ndarray) -> tuple[float, float]:
    """Return the seconds of encoding and of decoding some values."""
    wire = parse(name)
    if wire is None:
        return 0.0, 0.0
    data, residual = np.empty(wire.size(values.size, values.dtype), np.uint8), np.zeros_like(values)
    decoded, times = np.empty_like(values), (0.0, 0.0)
    for _ in range(2):  # The first time, loops are compiled.
        started = time.perf_counter()
        wire.encode(values, residual, data)
        between = time.perf_counter()
        wire.decode(data, decoded)
        times = between - started, time.perf_counter() - between
    return times


def _computing_seconds(comm: MPI.Intracomm, roles: Roles, job: Job) -> float:
    """Return how long the slowest worker computes between two exchanges."""
    seconds = 0.0
    if any(comm.rank in replica for replica in roles.replicas):
        for _ in range(2):  # The first time, loops are compiled.
            started = time.perf_counter()
            first_gradient(job)
            seconds = time.perf_counter() - started
    return float(comm.allreduce(seconds, op=MPI.MAX)) * exchanges_every(job)
