"""A worker's connection to the servers, by a link that only notes what it is asked for."""

from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.engines.mpi.connection import Connection
from mpidl.engines.mpi.request_handler import SideChannel
from mpidl.engines.mpi.through_servers import PrefetchingBehindPush
from mpidl.engines.progress import Encodings
from mpidl.parameters import Range
from mpidl.transport.protocol import ShardClock
from mpidl.transport.status import WorkerStatus
from mpidl.wire import parse

SHARDS = [Range(0, 3), Range(3, 8)]
EIGHT = np.arange(8.0)


class Link:
    """Servers whose parameters are the number of fetches so far, and whose clocks are given."""

    crowded, direct, encoded = False, True, ()

    def __init__(self, clocks=((0, 0), (0, 0))):
        self.fetches = self.pushes = self
        self.clocks, self.bytes, self.begun, self.started = clocks, 0, [], 0

    def backoff(self, longest=None):
        return None

    def start(self, parameters, clocks, without=()):
        self.started += 1
        parameters[:], clocks[:] = self.started, self.clocks

    def finish(self):
        pass

    def follow(self, parameters, clocks):
        return []

    def begin(self, clocks, batches, zero_copy):
        self.begun.append((list(clocks), batches))

    def send(self, vector, start=0):
        self.bytes += vector.nbytes
        return True

    def applied(self):
        return True


@pytest.fixture
def status():
    return WorkerStatus()


@pytest.fixture
def connected(status):
    """Return a connection, its link, and the orders that others may have marked when values arrived."""

    def connect(*clocks):
        orders, unpushed = [], SimpleNamespace(batches=(4, 6))
        connection = Connection(SHARDS, status, unpushed, (), orders.append, SideChannel())
        connection.bind(Link(clocks or ((0, 0), (0, 0))))
        return connection, connection.link, orders

    return connect


def test_the_last_order_that_any_shard_has_seen_is_obeyed_before_its_values_are_used(connected):
    """Values behind another worker's mark must not reach this replica before its own mark."""
    connection, link, orders = connected((7, 1), (9, 2))
    connection.parameters, clocks = np.empty(8), connection.clocks()
    connection.start_fetch(connection.parameters, clocks)
    assert orders == []
    connection.finish_fetch(connection.parameters, clocks)
    assert orders == [2]
    assert connection.fetched[:, ShardClock.CLOCK].tolist() == [7, 9]
    connection.begin_push(EIGHT, zero_copy=False)
    assert link.begun == [([7, 9], (4, 6))]


def test_another_link_knows_nothing_of_a_push_that_had_begun(connected):
    connection, first, _ = connected()
    connection.begin_push(EIGHT, zero_copy=False)
    connection.begin_push(EIGHT, zero_copy=False)
    assert len(first.begun) == 1
    connection.bind(second := Link())
    other = EIGHT.copy()
    connection.begin_push(other, zero_copy=False)
    connection.deliver(other)
    assert len(second.begun) == 1


def test_each_push_counts_with_its_own_bytes(connected, status):
    connection, _, _ = connected()
    figures = status.figures
    for number in (1, 2):
        connection.begin_push(EIGHT, zero_copy=False)
        connection.send(EIGHT)
        connection.deliver(EIGHT)
        assert (figures["pushes"], figures["bytes_pushed"]) == (number, number * 2 * EIGHT.nbytes)


@pytest.mark.parametrize(("wires", "name"), [(("bf16", None), "residual"), ((None, "bf16"), "copy")])
def test_what_encodings_have_left_out_of_each_shard_goes_on_in_another_process(wires, name):
    made = [Encodings.of(SHARDS, np.float64, *(each and parse(each) for each in wires)) for _ in range(2)]
    before, after = made
    for each in before.copies:
        each.begun = True
    for part, shard in zip(before.feedback or before.copies, SHARDS, strict=True):
        (part.residual if before.feedback else part.values)[:] = EIGHT[slice(*shard)]
    vectors = before.vectors()
    assert list(vectors) == [name]
    assert vectors[name].tolist() == EIGHT.tolist()
    after.load(vectors)
    assert after.vectors()[name].tolist() == EIGHT.tolist()


def test_copies_that_have_not_begun_are_in_no_checkpoint():
    encodings = Encodings.of(SHARDS, np.float64, None, parse("bf16"))
    encodings.copies[0].begun = True
    assert encodings.vectors() == {}


def test_values_that_a_push_has_taken_are_the_next_fetch_and_only_that(connected):
    connection, _, _ = connected()
    connection.parameters = np.zeros(8)
    exchange, seen = PrefetchingBehindPush(connection), []
    exchange.fetch(connection.parameters, newer=False)
    for kind in ("push", "fetch", "fetch", "push", "fetch", "fetch"):
        if kind == "push":
            exchange.push(EIGHT)
        else:
            exchange.fetch(connection.parameters, newer=False)
        seen.append(int(connection.parameters[0]))
    # Each push and each further fetch brings newer values; the first fetch behind a push has those of the push.
    assert seen[0] == seen[1] < seen[2] < seen[3] == seen[4] < seen[5]
