"""A server's tables: what pushes have for rows is applied when the shard's clock advances, once, also in a copy."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.rules import Adagrad, Adam, Adamw, Momentum, Nesterov, Sgd
from mpidl.shards.policies import AccumulateGradients, ApplyAtOnce, RescaledRate, drop_above, inverse
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.sparse.messages import TableRows, plain
from mpidl.sparse.server_tables import ServerTables
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table

DTYPE = np.dtype(np.float64)
#: A policy that adds pushes up, whatever their number.
POLICY = SimpleNamespace(count=None, factor=lambda push: push.factor)


class Server(ServerTables):
    """Tables whose rows begin with zeros, and the clock of their shard, which the test sets."""

    def __init__(self, clock=6):
        rule = Sgd(1.0)
        super().__init__([Table(TableSpec("words", 1, scale=0), rule, dtype=DTYPE)], rule, plain(DTYPE), clock)
        self.shard = SimpleNamespace(clock=clock, rate_factor=1.0)

    def push(self, worker, values, factor=1.0, dropped=False):
        self.receive(worker, [part(values)])
        self.end_push(self.shard, POLICY, SimpleNamespace(worker=worker, factor=factor), dropped)


def part(values):
    """Return gradients of ids, a dict of numbers."""
    return TableRows(0, np.array(list(values), np.int64), np.array([[each] for each in values.values()], DTYPE))


def rows(of):
    found = of.tables[0].arrays()
    return dict(zip(found["ids"].tolist(), found["rows"][:, 0].tolist(), strict=True))


def uses(of):
    return of.tables[0].arrays()["uses"].tolist()


def test_the_rest_is_an_update_after_that_of_the_clock():
    server = Server(clock=6)
    server.push(0, {1: 2.0})
    assert rows(server) == {}
    server.apply_rest(server.shard, POLICY)
    assert (rows(server), uses(server)) == ({1: -2.0}, [[7, 1]])


def test_what_a_worker_has_sent_since_its_last_push_is_applied_at_its_end():
    server = Server(clock=6)
    server.receive(3, [part({1: 2.0})])
    server.end_worker(server.shard, POLICY, worker=2)
    assert rows(server) == {}
    server.end_worker(server.shard, POLICY, worker=3)
    server.end_worker(server.shard, POLICY, worker=3)
    assert (rows(server), uses(server)) == ({1: -2.0}, [[7, 1]])


@pytest.mark.parametrize("load", [False, True])
def test_a_copy_has_what_is_coming_of_its_own(load):
    """Of a push whose rows come in two messages, one before the copy, each gets its own second one alone."""
    server = Server(clock=6)
    server.receive(0, [part({1: 2.0})])
    copy = server.copy()
    if load:
        copy = Server(clock=0)
        copy.load(server)
    server.receive(0, [part({2: 8.0})])
    copy.receive(0, [part({3: 8.0})])
    for each, second in ((server, 2), (copy, 3)):
        each.shard = SimpleNamespace(clock=7, rate_factor=1.0)
        each.end_push(each.shard, POLICY, SimpleNamespace(worker=0, factor=1.0), dropped=False)
        assert rows(each) == {1: -2.0, second: -8.0}


def test_the_mean_is_of_all_pushes_with_and_without_an_id():
    server = Server(clock=6)
    server.push(0, {1: 2.0, 2: 6.0})
    server.push(1, {1: 4.0}, factor=0.5)
    server.push(2, {3: 9.0}, dropped=True)
    server.shard.clock = 7
    server.push(3, {4: 3.0})
    # The rate of the mean is the sum of the factors over the number of pushes.
    assert rows(server) == pytest.approx({1: -4 / 3, 2: -2.0, 4: -1.0})
    assert all(each == [7, 1] for each in uses(server))


def test_the_mean_is_over_the_number_that_the_policy_gathers():
    server = Server(clock=6)
    server.push(0, {1: 2.0})
    server.push(1, {1: 4.0})
    server.shard.clock = 7
    server.settle(server.shard, SimpleNamespace(count=4))
    assert rows(server) == {1: -1.5}


IDS, DIMENSION = np.array([3, -5, 11, 2**40]), 3


@pytest.mark.parametrize("rule", [Sgd(0.1), Momentum(0.1), Nesterov(0.1), Adagrad(0.1), Adam(0.1), Adamw(0.1)])
@pytest.mark.parametrize(
    "policy",
    [
        lambda: RescaledRate(3),
        lambda: ApplyAtOnce(inverse),
        *(partial(AccumulateGradients, count, inverse) for count in (1, 3)),
        lambda: drop_above(3, AccumulateGradients(2, inverse)),
    ],
)
def test_rows_are_updated_as_parameters_with_the_same_gradients(rule, policy):
    random, size = np.random.default_rng(1), IDS.size * DIMENSION
    table = Table(TableSpec("words", DIMENSION, scale=0.5), rule, capacity=9, dtype=np.float64)
    first = np.empty((IDS.size, DIMENSION))
    table.read(IDS, first)
    shard = Shard(Range(0, size), first.reshape(-1).copy(), ScheduledRule(rule, lambda batch: 0.9), policy(), size)
    shard.side_state = ServerTables([table], rule, plain(np.dtype(np.float64)))
    for number in range(40):
        worker, gradient = int(random.choice(3, p=[0.7, 0.2, 0.1])), random.normal(size=size)
        shard.side_state.receive(worker, [TableRows(0, IDS, gradient.reshape(first.shape))])
        shard.receive_push(worker, max(0, shard.clock - number % 5), gradient)
    shard.apply_rest()
    rows = np.empty_like(first)
    table.read(IDS, rows)
    assert rows.reshape(-1) == pytest.approx(shard.parameters, rel=1e-12)
    assert np.abs(rows - first).min() > 0
