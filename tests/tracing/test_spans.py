"""The spans that a rank keeps."""

import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.tracing import activities
from mpidl.tracing.activities import SHORT, Applications, Line, TracedActivity
from mpidl.tracing.spans import KINDS, Ring, around
from mpidl.transport.protocol import END, MARK, PushMessage
from mpidl.transport.status import WorkerStatus

FIGURES = {
    "gradient": "computing_seconds", "step": "overhead_seconds", "push": "pushing_seconds", "fetch": "fetching_seconds",
    "wait": "waiting_seconds", "evaluate": "evaluation_seconds",
}  # fmt: skip


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    clock = SimpleNamespace(now=100.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(activities, "time", clock)
    return clock


@pytest.fixture
def worker(clock):
    """A traced worker of rank 3 with two shards: its status, and the ring with its spans."""
    status, ring = WorkerStatus(), Ring(1 << 12, 1 << 12)
    line = Line(ring, 3, status.row["pushes"], [0, 1])

    status.use(partial(TracedActivity, line))
    for each in vars(status).values():
        if isinstance(each, TracedActivity):
            each.timer = clock.perf_counter
    return status, ring


def named(spans):
    return [(KINDS[span["kind"]], float(span["start"]), float(span["end"])) for span in spans]


def seconds(spans, kind, of="spent"):
    own = spans[spans["kind"] == KINDS.index(kind)]
    return own["spent"].sum() if of == "spent" else (own["end"] - own["start"]).sum()


def test_a_ring_keeps_the_first_and_the_last_spans():
    ring = Ring(2, 3)
    for number in range(9):
        ring.write(number % 2, number, number + 0.5, 0.25, push=number)
        assert ring.spans()["push"].tolist() == [*range(min(2, number + 1)), *range(max(2, number - 2), number + 1)]
    assert ring.dropped == 4
    assert ring.spans()["end"].tolist() == [0.5, 1.5, 6.5, 7.5, 8.5]
    assert (ring.spans()["clock"] == -1).all()


def test_seconds_at_the_end_come_with_the_first_two():
    ring = Ring()
    for number in range(20):
        ring.write(0, 100 + number, 101 + number, 1.0)
    assert around(ring.spans(), 3.0)["start"].tolist() == [100, 101, 117, 118, 119]
    assert around(Ring().spans(), 3.0).size == 0


def test_an_activity_is_cut_where_another_interrupts_it(worker, clock):
    status, ring = worker
    with status.gradient:
        clock.now += 1
        with status.push:
            clock.now += 2
        clock.now += 3
    status.figures["pushes"] += 1
    with status.fetch:
        clock.now += 1
        status.fetch.saw(np.array([[7, 0], [8, 0]]))
    expected = [("gradient", 100, 101), ("push", 101, 103), ("gradient", 103, 106), ("fetch", 106, 107)]
    assert named(ring.spans()) == expected
    assert ring.spans()["push"].tolist() == [0, 0, 0, 1]
    assert ring.spans()["shard"].tolist()[3] in (0, 1)
    assert ring.spans()["clock"].tolist() == [-1, -1, -1, 7 + ring.spans()["shard"][3]]
    assert (ring.spans()["pusher"] == 3).all()


def test_short_looks_while_a_rank_waits_are_one_span_at_the_end(worker, clock):
    status, ring = worker
    with status.wait:
        for _ in range(1000):
            clock.now += 1e-5
            with status.push:
                clock.now += SHORT / 4
    spans = ring.spans()
    assert [name for name, _, _ in named(spans)] == ["wait", "push"]
    assert seconds(spans, "wait") == pytest.approx(1e-2) == seconds(spans, "wait", of="clock")
    assert seconds(spans, "push") == pytest.approx(1000 * SHORT / 4) == seconds(spans, "push", of="clock")


@pytest.mark.parametrize("seed", range(20))
def test_spans_never_overlap_and_add_up_to_the_figures(worker, clock, seed):
    status, ring = worker
    draw = random.Random(seed)

    def work(depth=0):
        with getattr(status, draw.choice(list(FIGURES))):
            for _ in range(draw.randrange(4)):
                clock.now += draw.choice([1e-6, 1e-5, 1e-3])
                if depth < 4:
                    work(depth + 1)
                clock.now += draw.choice([0.0, 1e-6, 1e-3])

    for _ in range(50):
        work()
        clock.now += draw.choice([0.0, 1e-3])
    spans = ring.spans()
    assert len(spans) > 50
    assert (spans["end"] >= spans["start"]).all()
    assert (spans["start"][1:] - spans["end"][:-1]).min() >= -1e-9
    for kind, figure in FIGURES.items():
        assert seconds(spans, kind) == pytest.approx(float(status.figures[figure]), abs=1e-9)
        assert seconds(spans, kind, of="clock") == pytest.approx(seconds(spans, kind), abs=1e-9)


def test_chunks_of_a_push_that_are_applied_one_after_the_other_are_one_span(clock):
    shard, ring = SimpleNamespace(clock=10), Ring()

    def apply(message):
        clock.now += 1
        shard.clock += message.chunk == 0

    served = SimpleNamespace(shard=shard, number=4, apply=apply)
    traced = Applications(ring, served, [2, 3])
    for worker, push, chunk in [(0, 5, 2), (0, 5, 1), (1, 8, 0), (0, 5, 0), (0, 6, MARK), (0, 6, END)]:
        served.apply(PushMessage(worker, push, chunk, 7, np.zeros(0), (0, 0)))
    clock.now += 1
    served.apply(PushMessage(1, 9, 0, 1 << 40, np.zeros(0), (0, 0)))
    traced.flush()
    spans = ring.spans()
    assert named(spans) == [
        ("apply", 100, 102), ("apply", 102, 103), ("apply", 103, 104), ("save", 104, 105), ("apply", 107, 108)
    ]  # fmt: skip
    assert spans["pusher"].tolist() == [2, 3, 2, -1, 3]
    assert spans["push"].tolist() == [5, 8, 5, -1, 9]
    # Only an application that changes the clock has made it.
    assert spans["clock"].tolist() == [-1, 11, 12, -1, 13]
    assert spans["staleness"].tolist() == [3, 3, 4, -1, -1]
