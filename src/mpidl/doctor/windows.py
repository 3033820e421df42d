"""A pair of ranks, and probes of windows and messages between them: whether data arrive correctly, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from mpidl.doctor.examination import Finding, Verdict
from mpidl.rma.backoff import POLLING_SLEEP
from mpidl.rma.doorbells import Doorbells
from mpidl.rma.nodes import neighbours
from mpidl.rma.probes import WindowProbe

T = TypeVar("T")

ORIGIN, TARGET = 0, 1
#: The way without windows.
MESSAGES = "messages"


class Pair:
    """A communicator of two ranks, maybe on one node: the origin measures its puts into and gets from the target."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.origin = comm.rank == ORIGIN
        node = neighbours(comm)
        self.one_node = node.size == comm.size
        node.Free()

    def measure(self, action: Callable[[], T], serve: Callable[[], None] = lambda: None) -> T:
        """Run `action` on the origin while the target serves, as a server does; return the result on both ranks."""
        error: Exception | None = None
        result: Any = None
        if self.origin:
            try:
                result = action()
            except Exception as caught:
                error = caught
            self.comm.send((result, error and RuntimeError(str(error))), TARGET)
        else:
            while not self.comm.Iprobe(ORIGIN):
                serve()
            result, error = self.comm.recv(source=ORIGIN)
        if error is not None:
            raise error
        measured: T = result
        return measured


def seconds(action: Callable[[], object], rounds: int) -> list[float]:
    """Return the seconds of each of `rounds` calls."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return taken


def typical(action: Callable[[], object], rounds: int) -> float:
    """Return the median of the seconds of `rounds` calls."""
    return median(seconds(action, rounds))


#: Rounds of the test of the order of data, and elements of the data of a round (256 KiB).
ROUNDS, ELEMENTS = 200, 1 << 15
#: Bytes of a long transfer.
LONG = 4 << 20


def memory(pair: Pair, way: str) -> Finding:
    """Test whether memory can be opened, read and written, with one memory for local and remote access."""
    with WindowProbe(pair.comm, 5, way) as probe:
        right = probe.carries_values()
    return Finding("unified") if right else Finding("puts and gets return wrong values", Verdict.FAILED)


def order(pair: Pair, way: str) -> Finding:
    """Test whether data arrive before the counter that announces them, in both directions."""
    with WindowProbe(pair.comm, ELEMENTS, way) as probe:
        puts, gets = probe.overtakes(ROUNDS)
    if puts or gets:
        found = f"a counter overtook its data in {puts} of {ROUNDS} puts and {gets} of {ROUNDS} gets"
        return Finding(found, Verdict.FAILED, "gradients would be lost")
    return Finding(f"correct in {ROUNDS} rounds of {ELEMENTS * 8 >> 10} KiB in each direction")


def times(pair: Pair, way: str, nbytes: int) -> list[float]:
    """Return the seconds of a put and a get of `nbytes`, of a copy in memory and of a fetch-and-add, on both ranks."""
    with WindowProbe(pair.comm, nbytes // 8, way) as probe:
        values, other = np.ones(nbytes // 8, np.int64), np.zeros(nbytes // 8, np.int64)
        actions = (
            lambda: probe.put(values), lambda: probe.get(other), lambda: np.copyto(other, values), probe.fetch_add
        )  # fmt: skip

        def in_turn() -> list[float]:
            taken = [[typical(action, 1) for action in actions] for _ in range(15 if nbytes == LONG else 300)]
            return [median(column) for column in zip(*taken, strict=True)]

        return pair.measure(in_turn, probe.serve)


def latency(pair: Pair, way: str) -> Finding:
    """Measure the time of a transfer of 8 bytes."""
    put, get, _, add = (1e6 * each for each in times(pair, way, 8))
    return Finding(f"put {put:.1f} us, get {get:.1f} us, fetch-and-add {add:.1f} us")


def sends(pair: Pair, rounds: int = 100, nbytes: int = LONG) -> tuple[float, float]:
    """Return the seconds of a send of 8 bytes, and the bytes per second of sends of `nbytes`, on both ranks."""
    there_and_back = []
    for size, count in ((8, rounds), (nbytes, 15)):
        buffer, answer = np.zeros(size, np.uint8), np.zeros(8, np.uint8)

        def exchange(buffer: np.ndarray = buffer, answer: np.ndarray = answer) -> None:
            if pair.origin:
                pair.comm.Send(buffer, TARGET)
                pair.comm.Recv(answer, TARGET)
            else:
                pair.comm.Recv(buffer, ORIGIN)
                pair.comm.Send(answer, ORIGIN)

        there_and_back.append(typical(exchange, count))
    short, long = pair.comm.bcast(there_and_back, root=ORIGIN)
    return short / 2, nbytes / max(long - short / 2, 1e-9)


def bandwidth(pair: Pair, way: str) -> Finding:
    """Measure the bandwidth of long transfers, of a plain send and of a copy in memory."""
    put, get, copy = (LONG / each / 1e9 for each in times(pair, way, LONG)[:3])
    found = f"put {put:.1f} GB/s, get {get:.1f} GB/s, memcpy {copy:.1f} GB/s, send {sends(pair)[1] / 1e9:.1f} GB/s"
    return Finding.warning(pair.one_node and min(put, get) < copy / 2, found, "slow for ranks of one node")


def doorbells(pair: Pair, rounds: int = 20, patience: float = 0.5) -> Finding:
    """Test whether the ranks of one node can wake each other."""
    if not pair.one_node:
        return Finding(f"none between nodes: servers poll every {1e3 * POLLING_SLEEP:g} ms")
    bells, taken = Doorbells(pair.comm), []
    for _ in range(rounds):
        if pair.origin:
            # The target needs time to fall asleep.
            time.sleep(1e-3)
            start = time.perf_counter()
            bells.ring(TARGET)
            bells.sleep(patience)
            taken.append(time.perf_counter() - start)
        else:
            bells.sleep(patience)
            bells.ring(ORIGIN)
        bells.clear()
    bells.free()
    taken = pair.comm.bcast(taken, root=ORIGIN)
    if max(taken) >= patience:
        return Finding("a sleeping rank was not woken", Verdict.FAILED, "servers will answer slowly")
    return Finding(f"a rank wakes another one and is woken in {1e6 * median(taken):.0f} us")
