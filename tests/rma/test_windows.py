"""Windows and counters on real ranks."""

import numpy as np
import pytest
from ways import opened

pytestmark = pytest.mark.mpi


def make(comm, way, size=7):
    shapes = {"values": (np.float32, size + comm.rank), "count": (np.int64, 3)}
    return opened(comm, shapes, way)


def test_every_rank_reads_and_writes_every_region(comm, way):
    window = make(comm, way)
    window.local("values")[:] = comm.rank
    window.sync()
    window.quiesce()
    for rank in range(comm.size):
        values = np.empty(7 + rank, np.float32)
        window.to(rank).get(values, rank, "values")
        window.to(rank).flush(rank)
        assert np.all(values == rank)
    window.quiesce()
    following = (comm.rank + 1) % comm.size
    values = np.array([5, 6], np.float32)
    window.to(following).put(values, following, "values", 3)
    window.to(following).fence(following)
    window.quiesce()
    expected = [comm.rank] * 3 + [5, 6] + [comm.rank] * (2 + comm.rank)
    assert window.local("values").tolist() == expected
    window.free()


def test_regions_are_aligned_and_apart():
    from mpidl.rma.windows import place

    regions, size = place({"a": (np.int8, 3), "b": (np.float64, 700), "c": (np.int64, 1)})
    assert [r.displacement for r in regions.values()] == [0, 4096, 4096 + 5632]
    assert regions["c"].displacement + 8 <= size == 3 * 4096


def test_counters_of_every_rank_are_aligned(comm, way):
    shapes = {"bytes": (np.uint8, 3 + comm.rank), "count": (np.int64, 1), "end": (np.uint8, 1)}
    with opened(comm, shapes, way) as window:
        addresses = comm.allgather(window.local("count").ctypes.data)
    assert not any(address % 8 for address in addresses)


def test_long_messages_are_cut(comm, way, monkeypatch):
    from mpidl.rma import sends

    monkeypatch.setattr(sends, "LONGEST_MESSAGE", 1000)
    monkeypatch.setattr(sends, "LONGEST_PIECE", 1000)
    window = opened(comm, {"values": (np.float32, 1111), "more": (np.float32, 777)}, way)
    values = np.arange(1111, dtype=np.float32) + comm.rank
    target = (comm.rank + 1) % comm.size
    window.to(target).put(values, target, "values")
    window.to(target).put(-values[:777], target, "more")
    window.to(target).flush(target)
    back, more, last = np.empty_like(values), np.empty(777, np.float32), np.empty(1, np.float32)
    window.to(target).get(back, target, "values")
    window.to(target).get(more, target, "more")
    window.to(target).get(last, target, "values", 1110)
    window.to(target).flush(target)
    assert np.array_equal(back, values)
    assert np.array_equal(more, -values[:777])
    assert last[0] == values[-1]
    window.free()


def test_values_that_stay_may_change_once_their_target_is_flushed(comm, way):
    size, rounds = 1_000_003, 3
    following = (comm.rank + 1) % comm.size
    values = np.empty(size, np.float32)
    with opened(comm, {"values": (np.float32, rounds * size)}, way) as window:
        for number in range(rounds):
            values[:] = comm.rank + 10 * number
            window.to(following).put(values, following, "values", number * size, zero_copy=True)
            window.to(following).flush(following)
            values[:] = -1
        window.quiesce()
        found = window.local("values").reshape(rounds, size)
        expected = (comm.rank - 1) % comm.size + 10 * np.arange(rounds)
        assert (found == expected[:, None]).all()


def test_windows_can_be_made_anew(comm, way):
    for size in (3, 1001, 5):
        window = make(comm, way, size)
        assert not window.local("values").any()
        window.local("values")[:] = 1
        window.quiesce()
        window.free()


def test_an_unknown_allocation_is_refused(comm):
    from mpidl.rma.windows import Window

    with pytest.raises(ValueError, match="known: allocate, create"):
        Window(comm, {}, "malloc")


def test_counters_give_each_value_once(comm, way):
    from mpidl.rma.counters import Counter

    window = make(comm, way)
    counter = Counter(window, comm.size - 1, "count", 2)
    taken = [counter.fetch_add() for _ in range(200)]
    assert taken == sorted(set(taken))
    window.quiesce()
    together = [value for each in comm.allgather(taken) for value in each]
    assert sorted(together) == list(range(200 * comm.size))
    assert counter.read() == 200 * comm.size
    window.quiesce()
    if comm.rank == 0:
        assert counter.swap(-5) == 200 * comm.size
    window.quiesce()
    assert counter.read() == -5
    window.free()


class CountedWindow:
    """A window that counts its atomic operations."""

    def __init__(self, window):
        self.atomic, self._window = 0, window

    def to(self, rank):
        self._window = self._window.to(rank)
        return self

    def fetch_and_op(self, *arguments):
        self.atomic += 1
        self._window.fetch_and_op(*arguments)

    def __getattr__(self, name):
        return getattr(self._window, name)


@pytest.mark.parametrize("holder", [0, -1])
def test_a_counter_is_read_whole_while_others_add_and_by_a_get_where_that_is_whole(comm, way, holder):
    from mpidl.rma.counters import WHOLE_GETS, Counter

    # What is added changes both halves of the number, so that a value read in halves is no multiple of it.
    amount, adds = (1 << 32) - 1, 300
    with make(comm, way) as window:
        counted = CountedWindow(window)
        counter = Counter(counted, holder % comm.size, "count", 1)
        seen = []
        for _ in range(adds):
            if comm.rank % 2:
                counter.fetch_add(amount)
            seen.append(counter.read())
        window.quiesce()
        seen.append(counter.read())
    assert counted.atomic == (adds if comm.rank % 2 else 0) + (0 if WHOLE_GETS else len(seen))
    assert seen == sorted(seen)
    assert not any(value % amount for value in seen)
    assert seen[-1] == amount * adds * (comm.size // 2)


@pytest.mark.parametrize("way", ["messages", "mixed"])
def test_an_answer_waits_for_its_counter(comm, way, monkeypatch):
    """Each answer has what its owner wrote before it raised the counter; what is asked meanwhile is not late."""
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    size, rounds = 50_001, 5
    memory = opened(comm, {"values": (np.int64, size), "count": (np.int64, 2)}, way)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    assert all(memory.to(rank).supports_deferred_get for rank in others)
    assert not memory.to(comm.rank).supports_deferred_get or way == "messages"
    found = {rank: np.zeros((rounds, size), np.int64) for rank in others}
    for number in range(rounds):
        for rank in others:
            memory.to(rank).get_when(found[rank][number], rank, "values", 0, "count", 1, number + 1)
    at_once = np.full(1, -1)
    for rank in others:
        # Answered before all that was asked for earlier: nobody has raised its counter yet.
        memory.to(rank).get(at_once, rank, "count", 0)
    comm.Barrier()
    for number in range(rounds):
        memory.serve()
        memory.local("values")[:] = number + 1
        memory.local("count")[1] = number + 1
        memory.serve()
    for rank in others:
        memory.to(rank).flush(rank)
        assert (found[rank] >= np.arange(1, rounds + 1)[:, None]).all()
        assert (found[rank] <= rounds).all()
    assert not others or at_once[0] == 0
    memory.free()


def test_a_watch_tells_when_a_counter_has_come_so_far(comm, way):
    memory = opened(comm, {"count": (np.int64, 3)}, way)
    reached = {rank: memory.to(rank).watch(rank, "count", 2, 5) for rank in range(comm.size)}
    # What is asked meanwhile doesn't wait for that.
    at_once = np.full(3, -1)
    for rank in range(comm.size):
        memory.to(rank).get(at_once, rank, "count")
        memory.to(rank).flush(rank)
        assert at_once.tolist() == [0, 0, 0]
        assert not reached[rank]()
    memory.quiesce()
    for count in (4, 5):
        memory.local("count")[2] = count
        memory.sync()
        memory.quiesce()
        if count < 5:
            assert not any(each() for each in reached.values())
            memory.quiesce()
    for rank in range(comm.size):
        while not reached[rank]():
            memory.serve()
    memory.quiesce()
    memory.free()


def test_a_watch_may_be_given_up(comm, way):
    memory = opened(comm, {"count": (np.int64, 1)}, way)
    for rank in range(comm.size):
        assert not memory.to(rank).watch(rank, "count", 0, 1)()
    memory.free()
