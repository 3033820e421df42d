"""What is written into the coordinator's memory: a worker's tickets and its clock, and the coordinator's own record."""

from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.rma.coordinator import Record
from mpidl.rma.regions import RECORDS
from mpidl.transport.protocol import GIVEN_BACK, GIVEN_BACK_WIDTH, TAKINGS, TAKINGS_ROW, Control, GivenBack, Taking


class Memory:
    """The memory, and what is done to it, in order; a Put arrives at the next fence."""

    def __init__(self, workers):
        sizes = {"control": len(Control), "takings": workers * TAKINGS_ROW, "clocks": workers}
        sizes["given_back"] = GIVEN_BACK * GIVEN_BACK_WIDTH
        self.regions = {name: np.zeros(size, np.int64) for name, size in sizes.items()}
        self._coming, self.rung = [], []
        self.rows = self.regions["takings"].reshape(workers, TAKINGS_ROW)
        self.given_back = self.regions["given_back"].reshape(GIVEN_BACK, GIVEN_BACK_WIDTH)
        turn, doorbells = SimpleNamespace(pass_on=lambda: None), SimpleNamespace(ring=self._ring, alone=True)
        self.shared = SimpleNamespace(
            window=self, roles=SimpleNamespace(coordinator=0, replicas=range(workers)), workers=range(1, 1 + workers),
            doorbells=doorbells, turn=turn, backoff=lambda: self,
        )  # fmt: skip

    def _ring(self, rank):
        self.rung.append((rank, self.regions["clocks"].tolist()))

    def put(self, values, rank, name, offset=0):
        self._coming.append((name, offset, values.copy()))

    def get(self, values, rank, name, offset=0):
        values.ravel()[:] = self.regions[name][offset : offset + values.size]

    def fetch_and_op(self, value, before, rank, name, offset, op):
        from mpi4py import MPI

        region = self.regions[name]
        before[0] = region[offset]
        region[offset] = max(region[offset], value[0]) if op == MPI.MAX else region[offset] + value[0]

    def fence(self, rank):
        for name, offset, values in self._coming:
            self.regions[name][offset : offset + values.size] = values
        self._coming.clear()

    def flush(self, rank):
        pass

    supports_deferred_get = False

    def to(self, rank):
        return self

    def until(self, ready):
        if not ready():
            raise TimeoutError


@pytest.fixture
def memory():
    return Memory(2)


@pytest.fixture
def workers(memory):
    from mpidl.rma.tickets import Tickets

    found = [Tickets(memory.shared, number) for number in range(2)]
    for each in found:
        each.size = lambda ticket: (2, 5)
    return found


def notes(row):
    """Return a worker's word, and its notes."""
    return int(row[0]), row[1:].reshape(TAKINGS, len(Taking))[: row[0] // 2].tolist()


def test_only_the_worker_that_has_a_part_notes_it(memory, workers):
    assert [each.claim(-3) for each in workers] == [True, False]
    assert notes(memory.rows[0]) == (2, [[-3, 2, 5]])
    assert notes(memory.rows[1]) == (0, [])
    assert memory.given_back[2, [GivenBack.CLAIMS, GivenBack.TAKER]].tolist() == [2, 1]
    assert not workers[0].claim(-3)


def test_a_worker_notes_all_that_it_has_taken(memory, workers):
    taken = [workers[number].take() for number in (0, 1, 1, 0)]
    assert taken == [0, 1, 2, 3]
    assert notes(memory.rows[0]) == (4, [[0, 2, 5], [3, 4, 10]])
    assert notes(memory.rows[1]) == (4, [[1, 2, 5], [2, 4, 10]])


def test_no_note_is_overwritten_while_another_worker_takes_a_ticket(memory, workers):
    for _ in range(TAKINGS):
        workers[0].take()
    assert memory.regions["control"][Control.NOTED] == 0
    memory.rows[1, 0] = 1
    with pytest.raises(TimeoutError):
        workers[0].take()
    assert memory.rows[0, 0] == 2 * TAKINGS
    memory.rows[1, 0] = 2
    assert workers[0].take() == TAKINGS
    assert memory.regions["control"][Control.NOTED] == TAKINGS


def test_a_clock_is_there_before_those_are_woken_that_wait_for_it(memory):
    from mpidl.rma.tickets import Clocks

    clocks = [Clocks(memory.shared, replica) for replica in range(2)]
    clocks[1].show(3)
    assert memory.rung == [], "the slowest is another one"
    clocks[0].show(2)
    assert memory.rung == [(rank, [2, 3]) for rank in memory.shared.workers]
    assert clocks[0].all_reached(2)


BYTES = RECORDS * 256


class RecordMemory:
    """A window of one region; `sync` may be where the process dies."""

    def __init__(self):
        self.values, self.syncs = np.zeros(BYTES, np.uint8), 0

    def local(self, name):
        return self.values

    def sync(self):
        self.syncs -= 1
        if self.syncs == 0:
            raise KeyboardInterrupt


def test_the_last_record_is_read_by_another_process():
    memory = RecordMemory()
    assert Record(memory).read() is None
    for number in range(5):
        Record(memory).write(b"state %d" % number)
        assert Record(memory).read() == b"state %d" % number
    Record(memory).write(bytes(BYTES))
    assert Record(memory).read() is None, "one that has no room is none, lest an earlier one be taken for it"


@pytest.mark.parametrize("written", range(3))
def test_a_record_that_was_being_written_is_not_read(written):
    memory = RecordMemory()
    for number in range(written):
        Record(memory).write(b"state %d" % number)
    before, after, content = memory.values.copy(), memory.values, b"the next, longer one"
    memory.syncs = 1
    with pytest.raises(KeyboardInterrupt):
        Record(memory).write(content)
    # The process has died at any byte of what it had written so far.
    for end in np.flatnonzero(before != after):
        memory.values = before.copy()
        memory.values[:end] = after[:end]
        assert Record(memory).read() == (b"state %d" % (written - 1) if written else None)
    memory.values = after
    Record(memory).write(b"by another")
    assert Record(memory).read() == b"by another"
