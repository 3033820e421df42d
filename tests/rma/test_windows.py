"""Windows and counters on real ranks."""

import numpy as np
import pytest

pytestmark = pytest.mark.mpi


@pytest.fixture(params=["allocate", "create"])
def allocation(request):
    return request.param


def make(comm, allocation, size=7):
    from mpidl.rma.windows import Window

    shapes = {"values": (np.float32, size + comm.rank), "count": (np.int64, 3)}
    return Window(comm, shapes, allocation)


def test_every_rank_reads_and_writes_every_region(comm, allocation):
    window = make(comm, allocation)
    window.local("values")[:] = comm.rank
    window.sync()
    comm.Barrier()
    for rank in range(comm.size):
        values = np.empty(7 + rank, np.float32)
        window.get(values, rank, "values")
        window.flush(rank)
        assert np.all(values == rank)
    comm.Barrier()
    following = (comm.rank + 1) % comm.size
    window.put(np.array([5, 6], np.float32), following, "values", 3)
    window.flush(following)
    comm.Barrier()
    window.sync()
    expected = [comm.rank] * 3 + [5, 6] + [comm.rank] * (2 + comm.rank)
    assert window.local("values").tolist() == expected
    window.free()


def test_regions_are_aligned_and_apart():
    from mpidl.rma.windows import place

    regions, size = place({"a": (np.int8, 3), "b": (np.float64, 700), "c": (np.int64, 1)})
    assert [r.displacement for r in regions.values()] == [0, 4096, 4096 + 5632]
    assert size == regions["c"].displacement + 8


def test_long_messages_are_cut(comm, allocation, monkeypatch):
    from mpidl.rma import windows

    monkeypatch.setattr(windows, "LONGEST_MESSAGE", 1000)
    window = windows.Window(comm, {"values": (np.float32, 1111)}, allocation)
    values = np.arange(1111, dtype=np.float32) + comm.rank
    target = (comm.rank + 1) % comm.size
    window.put(values, target, "values")
    window.flush(target)
    back = np.empty_like(values)
    window.get(back, target, "values")
    window.flush(target)
    assert np.array_equal(back, values)
    comm.Barrier()
    window.free()


def test_windows_can_be_made_anew(comm, allocation):
    for size in (3, 1001, 5):
        window = make(comm, allocation, size)
        assert not window.local("values").any()
        window.local("values")[:] = 1
        comm.Barrier()
        window.free()


def test_an_unknown_allocation_is_refused(comm):
    from mpidl.rma.windows import Window

    with pytest.raises(ValueError, match="known: allocate, create"):
        Window(comm, {}, "malloc")


def test_counters_give_each_value_once(comm, allocation):
    from mpidl.rma.counters import Counter

    window = make(comm, allocation)
    counter = Counter(window, comm.size - 1, "count", 2)
    taken = [counter.fetch_add() for _ in range(200)]
    assert taken == sorted(set(taken))
    together = [value for each in comm.allgather(taken) for value in each]
    assert sorted(together) == list(range(200 * comm.size))
    assert counter.read() == 200 * comm.size
    comm.Barrier()
    if comm.rank == 0:
        assert counter.swap(-5) == 200 * comm.size
    comm.Barrier()
    assert counter.read() == -5
    window.free()
