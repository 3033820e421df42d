"""A pair of ranks, and probes of windows and messages between them: whether data arrive correctly, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from mpidl.doctor.examination import Finding, Verdict
from mpidl.rma.nodes import neighbours
from mpidl.rma.probes import WindowProbe

T = TypeVar("T")

ORIGIN, TARGET = 0, 1


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
        result: T
        if not self.origin:
            while not self.comm.Iprobe(ORIGIN):
                serve()
            result, error = self.comm.recv(source=ORIGIN)
            if error is not None:
                raise error
            return result
        try:
            result = action()
        except Exception as error:
            self.comm.send((None, RuntimeError(str(error))), TARGET)
            raise
        self.comm.send((result, None), TARGET)
        return result


def seconds(action: Callable[[], object], rounds: int) -> list[float]:
    """Return the seconds of each of `rounds` calls."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return times


def typical(action: Callable[[], object], rounds: int) -> float:
    """Return the median of the seconds of `rounds` calls."""
    return median(seconds(action, rounds))


#: Rounds of the test of the order of data, and elements of the data of a round (256 KiB).
ROUNDS, ELEMENTS = 200, 1 << 15
#: Bytes of a long transfer, and seconds of a busy target's computation.
LONG, BUSY = 4 << 20, 0.05
#: Seconds of a get above which a busy target makes others wait.
PROMPT = 1e-3


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


def latencies(pair: Pair, way: str) -> list[float]:
    """Return the seconds of a put of 8 bytes, a get and a fetch-and-add, on both ranks."""
    with WindowProbe(pair.comm, 1, way) as probe:
        value = np.zeros(1, np.int64)

        def times() -> list[float]:
            actions = (lambda: probe.put(value), lambda: probe.get(value), probe.fetch_add)
            return [typical(action, 300) for action in actions]

        return pair.measure(times, probe.serve)


def latency(pair: Pair, way: str) -> Finding:
    """Measure the time of a transfer of 8 bytes."""
    found = [1e6 * each for each in latencies(pair, way)]
    return Finding("put {:.1f} us, get {:.1f} us, fetch-and-add {:.1f} us".format(*found))


def bandwidths(pair: Pair, way: str) -> list[float]:
    """Return the bytes per second of long puts, gets and copies in memory, on both ranks."""
    with WindowProbe(pair.comm, LONG // 8, way) as probe:
        values, other = np.ones(LONG // 8, np.int64), np.zeros(LONG // 8, np.int64)

        def times() -> list[float]:
            actions = (lambda: probe.put(values), lambda: probe.get(other), lambda: np.copyto(other, values))
            in_turn = [[typical(action, 1) for action in actions] for _ in range(15)]
            return [median(column) for column in zip(*in_turn, strict=True)]

        return [LONG / each for each in pair.measure(times, probe.serve)]


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
    fast = [each / 1e9 for each in (*bandwidths(pair, way), sends(pair)[1])]
    found = "put {:.1f} GB/s, get {:.1f} GB/s, memcpy {:.1f} GB/s, send {:.1f} GB/s".format(*fast)
    if pair.one_node and min(fast[:2]) < fast[2] / 2:
        return Finding(found, Verdict.WARNING, "slow for ranks of one node")
    return Finding(found)


def busy_target(pair: Pair, way: str, rounds: int = 8) -> Finding:
    """Measure the time of a get while its target computes without calling MPI."""
    with WindowProbe(pair.comm, 1, way) as probe:
        value, times = np.zeros(1, np.int64), []
        for _ in range(rounds):
            pair.comm.Barrier()
            _compute(BUSY / 10 if pair.origin else BUSY)
            if pair.origin:
                start = time.perf_counter()
                probe.get(value)
                times.append(time.perf_counter() - start)
        times = pair.comm.bcast(times)
    middle, longest = median(times), max(times)
    found = f"a get takes {_span(middle)}, at most {_span(longest)}, while its target computes for {_span(BUSY)}"
    if middle > PROMPT:
        return Finding(
            found, remedy="no progress for a computing target over this network: fine, servers keep calling MPI"
        )
    return Finding(found)


def _compute(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _span(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
