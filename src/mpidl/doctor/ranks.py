"""The part of the examination by two ranks of a job."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.doctor import machine, measuring, windows
from mpidl.doctor.examination import Examination, Finding
from mpidl.doctor.windows import MESSAGES, Pair, typical
from mpidl.report.text import duration
from mpidl.rma.windows import ALLOCATIONS, allocation_chosen
from mpidl.wire import FORMATS, parse
from mpidl.wire.feedback import CHUNK

#: What to do where exchanges are long.
FASTER = (
    "algorithm.wire and wire_fetch: the first of these with which exchanges are shorter than gradients; "
    "`mpidl plan` recommends it for a job"
)
#: Ratio of times from which an exchange counts as longer.
SHORTER = 1.1
#: Seconds between two tests for the end by ranks that take no part.
LOOK_EVERY = 0.01


def examine(examination: Examination, save: Path | None = None) -> int:
    """Examine the first and the last rank while the others sleep, and return the exit code; collective."""
    world = MPI.COMM_WORLD
    chosen = world.rank in (0, world.size - 1)
    comm = world.Split(0 if chosen else MPI.UNDEFINED)
    code = _examine_pair(examination, Pair(comm), save) if isinstance(comm, MPI.Intracomm) and chosen else 0
    ended = world.Ibarrier()
    while not ended.Test():
        time.sleep(LOOK_EVERY)
    return code


def _examine_pair(examination: Examination, pair: Pair, save: Path | None) -> int:
    examination.comm, check = pair.comm, examination.check
    check("thread level", machine.threads)
    check("ranks", hosts, pair)
    if not pair.one_node:
        check("TCP congestion control", machine.congestion)
    allocated = allocation_chosen()
    used = allocated if pair.one_node else MESSAGES
    sound = {way: _examine_way(examination, pair, way, way == used) for way in (*ALLOCATIONS, MESSAGES)}
    check("doorbells", windows.doorbells, pair, needed=False)
    if not pair.one_node:
        check("wire formats", wire_formats, pair, needed=False)
    check("transport", transport, sound, allocated, pair.one_node)
    if save is not None and sound[used]:
        examination.heading("measured")
        found: dict[str, Any] = {}
        check("  node", measuring.node, pair, used, found)
        check("  link", measuring.link, pair, used, found)
        check("  saved", measuring.save, pair, save, found)
    return examination.end()


def _examine_way(examination: Examination, pair: Pair, way: str, used: bool) -> bool:
    """Examine one kind of windows, or messages, and return whether they are correct."""
    examination.heading(f"{'' if way == MESSAGES else 'windows, '}{way}{' (used)' if used else ''}")
    probes = {"memory": windows.memory, "order of data": windows.order}
    probes |= {"8 bytes": windows.latency, "4 MiB": windows.bandwidth}
    return all(examination.check(f"  {what}", probe, pair, way, needed=used) for what, probe in probes.items())


def hosts(pair: Pair) -> Finding:
    """Find the nodes of the two ranks."""
    names = pair.comm.allgather(socket.gethostname())
    ranks = pair.comm.allgather(MPI.COMM_WORLD.rank)
    on = ", ".join(f"{rank} on {host}" for rank, host in zip(ranks, names, strict=True))
    return Finding(f"{on} of {MPI.COMM_WORLD.size}: {'one node' if pair.one_node else 'two nodes'}")


def wire_formats(pair: Pair) -> Finding:
    """Find the time of an exchange in each wire format, encoding included, and the formats that shorten it."""
    _, bandwidth = windows.sends(pair)
    took = pair.measure(lambda: {name: exchange_seconds(name, bandwidth) for name in FORMATS})
    each = ", ".join(f"{duration(seconds)} as {name}" for name, seconds in took.items())
    found = f"a push and a fetch of 1M parameters take {each}"
    longer = took["fp32"] > SHORTER * min(took.values())
    remedy = FASTER if longer else 'no format shortens them: leave algorithm.wire = "fp32"'
    return Finding(found, remedy=remedy)


def exchange_seconds(name: str, bandwidth: float) -> float:
    """Return the seconds of a push and a fetch of 10^6 parameters of float32 at `bandwidth` bytes per second."""
    wire, values = parse(name), np.random.default_rng(0).normal(size=CHUNK).astype(np.float32)
    if wire is None:
        return 2 * 4e6 / bandwidth
    data, residual, decoded = np.empty(wire.size(CHUNK, values.dtype), np.uint8), np.zeros_like(values), values.copy()
    wire.encode(values, residual, data)
    wire.decode(data, decoded)
    encoding = typical(lambda: wire.encode(values, residual, data), 5)
    decoding = typical(lambda: wire.decode(data, decoded), 5)
    # In a fetch, both the server and the worker decode.
    return (2 * data.nbytes / bandwidth + 2 * encoding + 3 * decoding) * 1e6 / CHUNK


def transport(sound: dict[str, bool], allocated: str, one_node: bool) -> Finding:
    """Find the transport to use between the two ranks, and the windows."""
    if not one_node and sound[MESSAGES]:
        return Finding('"mixed"')
    ways = [way for way in (allocated, *ALLOCATIONS) if sound[way]]
    if ways:
        remedy = "" if ways[0] == allocated else f"set MPIDL_WINDOWS={ways[0]} on all ranks"
        return Finding(f'"windows" ({ways[0]})', remedy=remedy)
    if sound[MESSAGES]:
        return Finding('"messages"', remedy='these ranks\' windows lose data: set transport = "messages" in [topology]')
    return Finding(
        "none", remedy="windows and messages lose data: use another MPI library, or another network with this one"
    )
