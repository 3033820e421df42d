"""Probes of windows between two ranks: whether they transfer data correctly, and how fast."""

from __future__ import annotations

import time
from statistics import median

import numpy as np
from mpi4py import MPI

from mpidl.doctor.examination import Finding, Verdict
from mpidl.doctor.pair import TARGET, Pair, typical
from mpidl.rma.windows import Window

#: Rounds of the test of the order of data, and elements of the data of a round (256 KiB).
ROUNDS, ELEMENTS = 200, 1 << 15
#: Bytes of a long transfer, and seconds for which a busy target computes at a time.
LONG, BUSY = 4 << 20, 0.05
#: Seconds of a get beyond which a busy target makes others wait.
PROMPT = 1e-3

COUNTERS = {"counters": (np.int64, 2)}
PUBLISHED, CONSUMED = range(2)


def memory(pair: Pair, allocation: str) -> Finding:
    """Test whether a window can be opened, read and written, with one memory for local and remote access."""
    with pair.window({"values": (np.int64, 5)}, allocation) as window:
        own, back = np.arange(5) + 10 * pair.comm.rank, np.zeros(5, np.int64)
        partner = 1 - pair.comm.rank
        window.put(own, partner, "values")
        window.flush(partner)
        pair.comm.Barrier()
        window.get(back, partner, "values")
        window.flush(partner)
        window.sync()
        right = np.array_equal(back, own) and np.array_equal(window.local("values"), np.arange(5) + 10 * partner)
        right = pair.comm.allreduce(bool(right), op=MPI.LAND)
    return Finding("unified") if right else Finding("puts and gets return wrong values", Verdict.FAILED)


def order(pair: Pair, allocation: str) -> Finding:
    """Test whether data arrive before the counter that announces them, in both directions."""
    shapes = COUNTERS | {"data": (np.int64, ELEMENTS), "answer": (np.int64, ELEMENTS)}
    with pair.window(shapes, allocation) as window:
        wrong = sum(_write(window, k) if pair.origin else _read(window, pair.comm, k) for k in range(1, ROUNDS + 1))
        early_puts, early_gets = pair.comm.allgather(wrong)[::-1]
    if early_puts or early_gets:
        found = f"a counter overtook its data in {early_puts} of {ROUNDS} puts and {early_gets} of {ROUNDS} gets"
        return Finding(found, Verdict.FAILED, "gradients would be lost in these windows")
    return Finding(f"right in {ROUNDS} rounds of {ELEMENTS * 8 >> 10} KiB each way")


def _write(window: Window, number: int) -> bool:
    """Put data and announce them, as a worker does; return whether the data that the target announces are wrong."""
    data, counter, answer = np.full(ELEMENTS, number), np.array([number]), np.zeros(ELEMENTS, np.int64)
    window.put(data, TARGET, "data")
    window.flush(TARGET)
    window.put(counter, TARGET, "counters", PUBLISHED)
    window.flush(TARGET)
    counter[0] = 0
    while counter[0] < number:
        window.get(counter, TARGET, "counters", CONSUMED)
        window.flush(TARGET)
    window.get(answer, TARGET, "answer")
    window.flush(TARGET)
    return bool((answer != number).any())


def _read(window: Window, comm: MPI.Comm, number: int) -> bool:
    """Wait for data, as a server does, and announce others; return whether the data received are wrong."""
    counters, answer = window.local("counters"), window.local("answer")
    while counters[PUBLISHED] < number:
        comm.Iprobe()
        window.sync()
    wrong = bool((window.local("data") != number).any())
    answer[:] = number
    window.sync()
    counters[CONSUMED] = number
    window.sync()
    return wrong


def latency(pair: Pair, allocation: str) -> Finding:
    """Measure how long a transfer of 8 bytes takes."""
    with pair.window(COUNTERS, allocation) as window:
        value, before = np.zeros(1, np.int64), np.zeros(1, np.int64)

        def put() -> None:
            window.put(value, TARGET, "counters")
            window.flush(TARGET)

        def get() -> None:
            window.get(value, TARGET, "counters")
            window.flush(TARGET)

        def add() -> None:
            window.fetch_and_op(value, before, TARGET, "counters", 0, MPI.SUM)
            window.flush(TARGET)

        def times() -> list[float]:
            return [typical(action, 300) for action in (put, get, add)]

        latencies = [1e6 * each for each in pair.measure(times)]
    return Finding("put {:.1f} us, get {:.1f} us, fetch-and-add {:.1f} us".format(*latencies))


def bandwidth(pair: Pair, allocation: str) -> Finding:
    """Measure the bandwidth of long transfers, and of a copy in memory."""
    with pair.window({"values": (np.float32, LONG // 4)}, allocation) as window:
        values, other = np.ones(LONG // 4, np.float32), np.zeros(LONG // 4, np.float32)

        def put() -> None:
            window.put(values, TARGET, "values")
            window.flush(TARGET)

        def get() -> None:
            window.get(other, TARGET, "values")
            window.flush(TARGET)

        def times() -> list[float]:
            actions = (put, get, lambda: np.copyto(other, values))
            in_turn = [[typical(action, 1) for action in actions] for _ in range(15)]
            return [median(column) for column in zip(*in_turn, strict=True)]

        fast = [LONG / each / 1e9 for each in pair.measure(times)]
    found = "put {:.1f} GB/s, get {:.1f} GB/s, memcpy {:.1f} GB/s".format(*fast)
    if pair.one_node and min(fast[:2]) < fast[2] / 2:
        return Finding(found, Verdict.WARNING, "slow for ranks of one node")
    return Finding(found)


def busy_target(pair: Pair, allocation: str, rounds: int = 8) -> Finding:
    """Measure how long a get takes while its target computes and calls no MPI function."""
    with pair.window(COUNTERS, allocation) as window:
        value, times = np.zeros(1, np.int64), []
        for _ in range(rounds):
            pair.comm.Barrier()
            _compute(BUSY / 10 if pair.origin else BUSY)
            if pair.origin:
                start = time.perf_counter()
                window.get(value, TARGET, "counters")
                window.flush(TARGET)
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
