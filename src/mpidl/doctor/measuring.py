"""Measuring what predictions need, and keeping it: ``mpidl doctor --save``."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.config import measured
from mpidl.config.measured import Link, Measured, Node
from mpidl.doctor import windows
from mpidl.doctor.examination import Finding
from mpidl.doctor.gradients import ROUNDS, speeds
from mpidl.doctor.pair import Pair, seconds
from mpidl.report.text import quantity
from mpidl.rules import Adagrad
from mpidl.shards.shard import CHUNK_BYTES


class Measuring:
    """Probes that measure for a file.

    Parameters
    ----------
    pair : Pair
        The first rank's node is measured, and the link to the other rank.
    way : {"allocate", "create", "messages"}
        What the link is measured by; see `mpidl.rma.probes.WindowProbe`.
    path : Path
        The file.
    """

    def __init__(self, pair: Pair, way: str, path: Path) -> None:
        self._pair, self._way, self._path = pair, way, path
        self._measured = Measured()

    def node(self) -> Finding:
        """Measure gradients, updates and copies."""
        if not self._pair.origin and self._pair.one_node:
            # In a job, all cores compute at once.
            speeds()
        found = self._pair.measure(speeds)
        memcpy, update = self._pair.measure(lambda: (copy_bandwidth(), update_bandwidth()))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        cores = len(os.sched_getaffinity(0))
        node = Node(**self._origin(1), cores=cores, memory=memory, memcpy=memcpy, update=update, **found)
        self._measured = replace(self._measured, node=node)
        flops = {"dense": node.flops, **node.flops_of}
        gradients = ", ".join(f"{name} {quantity(speed, 'flop/s')}" for name, speed in flops.items())
        return Finding(f"gradients: {gradients}; updates {quantity(update, 'B/s')}")

    def link(self) -> Finding:
        """Measure pushes, fetches and sends."""
        push, fetch, _ = windows.bandwidths(self._pair, self._way)
        push_latency, fetch_latency, _ = windows.latencies(self._pair, self._way)
        send_latency, send = windows.sends(self._pair)
        link = Link(
            **self._origin(2), push_bandwidth=push, fetch_bandwidth=fetch, send_bandwidth=send,
            push_latency=push_latency, fetch_latency=fetch_latency, send_latency=send_latency,
        )  # fmt: skip
        if self._pair.one_node:
            self._measured = replace(self._measured, within=link)
        else:
            self._measured = replace(self._measured, between=link)
        return Finding(f"send {quantity(send, 'B/s')}, {send_latency * 1e6:.1f} us; put and get as above")

    def save(self) -> Finding:
        """Keep what was measured."""
        if self._pair.origin:
            measured.save(self._path, self._measured)
        return Finding(f"in {self._path}, for `mpidl plan` and `mpidl simulate`")

    def _origin(self, ranks: int) -> dict[str, Any]:
        hosts = self._pair.comm.allgather(socket.gethostname())[:ranks]
        mpi = " ".join(MPI.Get_library_version().split(",")[0].split())
        return {
            "hosts": tuple(dict.fromkeys(hosts)),
            "mpi": mpi,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def copy_bandwidth() -> float:
    """Return the bytes per second of a long copy in memory."""
    values, other = np.ones(windows.LONG, np.uint8), np.zeros(windows.LONG, np.uint8)
    return windows.LONG / min(seconds(lambda: np.copyto(other, values), ROUNDS))


def update_bandwidth() -> float:
    """Return the bytes of gradient per second that Adagrad applies, chunk by chunk, to a vector beyond the caches."""
    rule, chunk, chunks = Adagrad(), CHUNK_BYTES // 4, 64
    parameters, gradient = np.zeros(chunk * chunks, np.float32), np.ones(chunk, np.float32)
    state = rule.init(parameters)

    def update() -> None:
        for number in range(chunks):
            part = slice(number * chunk, (number + 1) * chunk)
            rule.update(parameters[part], tuple(vector[part] for vector in state), gradient, 1)

    update()
    return chunks * CHUNK_BYTES / min(seconds(update, ROUNDS))
