"""Models with tables on the virtual engine: against the same with dense parameters, by bytes, and by time."""

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
    Softsync,
    Ssp,
)
from mpidl.data import Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Times, Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.times import Exponential
from mpidl.parameters import shards
from mpidl.rules import Adagrad, Sgd
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.sparse.server_tables import ServerTables
from mpidl.sparse.virtual import VirtualTables
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
        part.beside = beside
    options = {"beside": VirtualTables(model, split, tables, ahead)} if tables else {}
    schedule = Schedule(Portions(split.samples, BATCH, BATCH, seed=7), epochs=epochs)
    training = Training(algorithm, model, split, schedule, **options)
    return VirtualEngine(training, parts, replicas, time=VirtualTime(times))


class Sparse:
    """A run of a model with a table: what it leaves, by any number of servers."""

    def __init__(self, split, algorithm, rule, servers=1, replicas=1, model=None, capacity=1000, **options):
        model = model or Sums()
        tables = [Table(model.tables[0], rule, capacity=capacity, seed=SEED, dtype=np.float64) for _ in range(servers)]
        self.servers = [ServerTables([table], rule, np.dtype(np.float64)) for table in tables]
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
    seen = np.unique(split.gather(np.arange(split.samples)).inputs)
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
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ALL, ids=str)
@pytest.mark.parametrize("ahead", [0, 2])
def test_every_algorithm_with_servers_trains_tables(algorithm, ahead):
    split = samples(IDS)
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
    """The gradient of each row is -1 for each time that a batch has its id; that of the parameters is 0."""

    def loss_and_gradient(self, batch):
        found = self.rows.look_up(0, batch.inputs.reshape(-1))
        found.add(-np.ones((batch.inputs.size, DIMENSION)))
        return 0.0, np.zeros(DIMENSION)


@pytest.mark.parametrize(
    "algorithm", [Downpour(), Downpour(n_push=4), Downpour(n_fetch=3, n_push=2, overlap=True), Ssp(bound=2), Dcasgd()]
)
@pytest.mark.parametrize("ahead", [0, 1])
def test_no_update_of_a_row_is_lost(algorithm, ahead):
    split = samples(IDS)
    run = Sparse(split, algorithm, Sgd(1.0), 3, 4, Tally(ahead > 0), times=TIMES, ahead=ahead, epochs=3)
    ids, counts = np.unique(split.gather(np.arange(split.samples)).inputs, return_counts=True)
    assert np.allclose(run.rows(ids), first_values(ids) + 3 * counts[:, None], rtol=0, atol=1e-9)


def test_gathered_gradients_that_are_too_few_for_an_update_are_applied_at_the_end():
    split = samples(IDS)
    run = Sparse(split, Softsync(modulate=False), Sgd(3.0), 2, 3, Tally(), times=TIMES, epochs=1)
    assert run.totals.pushes % 3
    ids, counts = np.unique(split.gather(np.arange(split.samples)).inputs, return_counts=True)
    assert np.allclose(run.rows(ids), first_values(ids) + counts[:, None], rtol=0, atol=1e-9)
