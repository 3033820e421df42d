"""Models with tables on the virtual engine: against the same with dense parameters, by bytes, and by time."""

from dataclasses import replace

import numpy as np
import pytest

from mpidl.algorithms import (
    ALGORITHMS,
    Adag,
    Aeasgd,
    Agn,
    BackupSync,
    Dcasgd,
    Diloco,
    Downpour,
    Dynsgd,
    Eamsgd,
    Easgd,
    Exchange,
    Rescaled,
    Ringleader,
    Ringmaster,
    Softsync,
    Ssp,
)
from mpidl.data import Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Times, Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.times import Constant, Death, Exponential, Failures
from mpidl.nn import adapt
from mpidl.parameters import shards
from mpidl.rules import Adagrad, Sgd
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.sparse.messages import plain
from mpidl.sparse.server_tables import ServerTables
from mpidl.sparse.virtual import READING, UPDATING, VirtualTables
from mpidl.tables.lookups import Wanted
from mpidl.tables.table import Table
from sparse_models import DIMENSION, SEED, Dense, Sums, first_values, samples

BATCH = 8
#: Any ids, both ends of int64 among them.
IDS = np.sort(np.r_[np.iinfo(np.int64).min, np.iinfo(np.int64).max, np.arange(-3, 40) * 7919])


def engine_of(model, split, algorithm, rule, servers, replicas, times=None, tables=(), ahead=0, epochs=2):
    of_shards = ScheduledRule(None if algorithm.default_rule is None else rule)
    parts = [
        Shard(part, model.parameters[slice(*part)].copy(), of_shards, algorithm.shard_policy(replicas), part.size)
        for part in shards(model.parameters.size, servers)
    ]
    for part, beside in zip(parts, tables, strict=False):
        part.side_state = beside
    options = {"channel": VirtualTables(model, split, tables, ahead)} if tables else {}
    schedule = Schedule(Portions(split.samples, BATCH, BATCH, seed=7), epochs=epochs)
    training = Training(algorithm, adapt(model), split, schedule, **options)
    return VirtualEngine(training, parts, replicas, time=VirtualTime(times))


class Sparse:
    """A run of a model with a table: what it leaves, by any number of servers."""

    def __init__(self, split, algorithm, rule, servers=1, replicas=1, model=None, capacity=1000, **options):
        model = model or Sums()
        tables = [Table(model.tables[0], rule, capacity=capacity, seed=SEED, dtype=np.float64) for _ in range(servers)]
        self.servers = [ServerTables([table], rule, plain(np.dtype(np.float64))) for table in tables]
        self.engine = engine_of(model, split, algorithm, rule, servers, replicas, tables=self.servers, **options)
        self.totals = self.engine.run()
        self.parameters, self.tables = self.engine.parameters(), tables

    def rows(self, ids):
        found = np.empty((len(ids), DIMENSION))
        for table in self.tables:
            own = np.isin(ids, table.arrays()["ids"])
            read = np.empty((own.sum(), DIMENSION))
            table.read(ids[own], read)
            found[own] = read
        return found


def ids_of(split):
    return split.gather(np.arange(split.samples)).inputs


def assert_tallied(run, split, epochs, left=()):
    """Check that all batches of some epochs have been counted once, except those of samples that are left."""
    ids, counts = np.unique(ids_of(split), return_counts=True)
    expected = epochs * counts
    for sample in left:
        np.subtract.at(expected, np.searchsorted(ids, split.gather(np.array([sample])).inputs), 1)
    assert np.allclose(run.rows(ids), first_values(ids) + expected[:, None], rtol=0, atol=1e-9)


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("rule", [Sgd(0.1), Adagrad(0.1)])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_sparse_run_is_the_dense_one_bit_for_bit(servers, rule, replicas):
    split = samples(IDS)
    algorithm = Downpour() if replicas == 1 else BackupSync(backup=0)
    times = None if replicas == 1 else Times(Exponential(1.0), Exponential(0.1), Exponential(0.1), 1e4)
    dense = Dense(IDS)
    engine = engine_of(dense, split, algorithm, rule, servers, replicas, times)
    engine.run()
    rows, weights = dense.rows(engine.parameters())
    sparse = Sparse(split, algorithm, rule, servers, replicas, times=times)
    seen = np.unique(ids_of(split))
    assert sum(map(len, sparse.tables)) == len(seen) > 30
    assert np.array_equal(sparse.rows(seen), rows[np.isin(IDS, seen)])
    assert np.array_equal(sparse.parameters, weights)
    assert not np.array_equal(sparse.rows(seen), first_values(seen))


TIMES = Times(Exponential(1.0), Exponential(0.1), Exponential(0.05), 1e4)
#: Every algorithm with servers, with keys by which its pushes are of several gradients, dropped or gathered.
ALL = [
    Downpour(), Downpour(n_push=3), Downpour(n_fetch=3, n_push=2, rate=0.05), Downpour(overlap=True),
    Downpour(max_staleness=1), Ssp(bound=1), Softsync(), Dynsgd(rate=0.05), Dcasgd(), Adag(rate=0.05),
    Adag(rate=0.05, damping="norm"), Agn(rate=0.05), Easgd(rate=0.05), Aeasgd(rate=0.05), Eamsgd(rate=0.01, tau=2),
    BackupSync(backup=1), Diloco(window=3, asynchronous=True, rate=0.05), Diloco(window=3, quorum=2, rate=0.05),
    Rescaled(max_staleness=3), Ringleader(), Ringmaster(max_delay=4, stops=False),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ALL, ids=str)
def test_every_algorithm_with_servers_trains_tables(algorithm):
    split, ahead = samples(IDS), ALL.index(algorithm) % 3
    run = Sparse(split, algorithm, Adagrad(0.1), servers=2, replicas=3, times=TIMES, ahead=ahead, epochs=4)
    batch = split.gather(np.arange(split.samples))
    ids = np.unique(batch.inputs)
    places = np.searchsorted(ids, batch.inputs.reshape(-1))
    before = Sums.computed(batch, first_values(ids)[places], Sums().parameters)[0]
    after = Sums.computed(batch, run.rows(ids)[places], run.parameters)[0]
    assert after < 0.8 * before
    assert run.totals.loss / run.totals.weight < before
    assert (run.rows(ids) != first_values(ids)).all(axis=1).mean() > 0.9
    assert run.totals.staleness.max > 0


def test_the_list_has_every_algorithm_with_servers():
    def through_servers(algorithm):
        return algorithm().exchange is Exchange.SERVERS

    kinds = {each for each in ALGORITHMS.values() if through_servers(each)}
    assert kinds - {type(each) for each in ALL} == set()


class Tally(Sums):
    """The gradient of each row is -1 for each time that a batch has its id; that of the parameters is 0.

    Only `some` ids are looked up.
    """

    def __init__(self, ahead=True, some=lambda ids: ids):
        super().__init__(ahead)
        self.some = some

    def wanted(self, batch):
        return [Wanted(0, self.some(batch.inputs.reshape(-1)))] if self._ahead else None

    def loss_and_gradient(self, batch):
        ids = self.some(batch.inputs.reshape(-1))
        self.rows.look_up(0, ids).add(-np.ones((ids.size, DIMENSION)))
        return 0.0, np.zeros(DIMENSION)


@pytest.mark.parametrize(
    "algorithm", [Downpour(), Downpour(n_push=4), Downpour(n_fetch=3, n_push=2, overlap=True), Ssp(bound=2), Dcasgd()]
)
@pytest.mark.parametrize("ahead", [0, 1])
def test_no_update_of_a_row_is_lost(algorithm, ahead):
    split = samples(IDS)
    run = Sparse(split, algorithm, Sgd(1.0), 3, 4, Tally(ahead > 0), times=TIMES, ahead=ahead, epochs=3)
    assert_tallied(run, split, 3)


def test_gathered_gradients_that_are_too_few_for_an_update_are_applied_at_the_end():
    split = samples(IDS)
    run = Sparse(split, Softsync(modulate=False), Sgd(3.0), 2, 3, Tally(), times=TIMES, epochs=1)
    assert run.totals.pushes % 3
    assert_tallied(run, split, 1)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(
    "failing",
    [
        {"deaths": (Death(1, 3.3, 9.0), Death(2, 5.0))},
        {"failures": Failures(Exponential(300.0), every=5.0, saving=0.2, restart=Constant(2.0))},
    ],
)
def test_rows_count_exactly_once_despite_deaths_and_restarts(ahead, failing):
    split, times = samples(IDS), replace(TIMES, **failing)
    run = Sparse(split, Downpour(n_push=3), Sgd(1.0), 2, 3, Tally(), times=times, ahead=ahead, epochs=9)
    portions, left = Portions(split.samples, BATCH, BATCH, seed=7), run.engine.supply.given_back.values()
    assert_tallied(run, split, 9, [sample for portion, _ in left for sample in portions.indices(portion)])
    assert run.totals.again or "deaths" in failing


@pytest.mark.parametrize("ahead", [0, 1])
def test_batches_without_ids_and_servers_without_rows(ahead):
    split = samples(IDS)
    zeros = Tally(some=lambda ids: ids[ids == 0])
    run = Sparse(split, Downpour(), Sgd(1.0), 3, 2, zeros, times=TIMES, ahead=ahead)
    assert sorted(map(len, run.tables)) == [0, 0, 1]
    assert np.allclose(run.rows(np.array([0])), first_values([0]) + 2 * np.sum(ids_of(split) == 0), rtol=0, atol=1e-9)
    split = samples(np.array([7]))
    run = Sparse(split, Downpour(), Sgd(1.0), 3, 2, zeros, times=TIMES, ahead=ahead)
    assert sorted(map(len, run.tables)) == [0, 0, 0]
    run = Sparse(split, Downpour(), Sgd(1.0), 3, 2, Tally(), times=TIMES, ahead=ahead)
    assert sorted(map(len, run.tables)) == [0, 0, 1]
    assert_tallied(run, split, 2)


def rows_of_batches(split, epochs):
    """Return the number of distinct ids of all batches."""
    portions = Portions(split.samples, BATCH, BATCH, seed=7)
    batches = [portions.indices(number) for number in range(epochs * portions.per_epoch)]
    return sum(np.unique(split.gather(batch).inputs).size for batch in batches)


@pytest.mark.parametrize("times", [None, TIMES])
@pytest.mark.parametrize("known", [True, False])
def test_bytes_are_those_of_distinct_rows(times, known):
    split = samples(IDS)
    run = Sparse(split, Downpour(), Sgd(0.1), 2, 1, Sums(known), times=times)
    rows, dense = rows_of_batches(split, 2) * (8 * DIMENSION + 8), run.totals.batches * 8 * DIMENSION
    for moved in (run.totals.bytes_pushed - dense, run.totals.bytes_fetched - dense):
        assert rows <= moved <= 1.05 * rows


def test_rows_are_fetched_while_the_batch_before_is_computed():
    """A fetch takes about as long as a gradient."""
    split, times = samples(IDS), Times(Constant(1.0), bandwidth=1000.0)
    ahead, behind, unknown = (
        Sparse(split, Downpour(overlap=True), Sgd(0.1), 1, 1, Sums(known), times=times, ahead=depth).totals
        for known, depth in ((True, 1), (True, 0), (False, 1))
    )
    assert behind.trained_seconds > 1.5 * ahead.trained_seconds > 1.5 * ahead.batches
    assert unknown.trained_seconds > 1.6 * ahead.batches


def test_servers_work_by_rows():
    split = samples(IDS)
    run = Sparse(split, Downpour(), Sgd(0.1), 1, 1, times=Times(Constant(1.0)))
    rows = rows_of_batches(split, 2)
    assert run.totals.spent.busy_seconds == [pytest.approx(rows * DIMENSION * 8 * (READING + UPDATING), rel=1e-2)]
