"""Rows of tables get the weights of pushes that the other parameters get, within momentum, too."""

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.rules import Adagrad, Adam, Adamw, Momentum, Nesterov, Sgd
from mpidl.shards.policies import ApplyAtOnce, Gather, RescaledRate, inverse
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.sparse.messages import Part, plain
from mpidl.sparse.server_tables import ServerTables
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table

IDS, DIMENSION = np.array([3, -5, 11, 2**40]), 3


@pytest.mark.parametrize("rule", [Sgd(0.1), Momentum(0.1), Nesterov(0.1), Adagrad(0.1), Adam(0.1), Adamw(0.1)])
@pytest.mark.parametrize(
    "policy",
    [lambda: RescaledRate(3), lambda: ApplyAtOnce(inverse), lambda: Gather(1, inverse), lambda: Gather(3, inverse),
     lambda: Gather(2, inverse).drop_above(3)],
)  # fmt: skip
def test_rows_are_updated_as_parameters_with_the_same_gradients(rule, policy):
    random, size = np.random.default_rng(1), IDS.size * DIMENSION
    table = Table(TableSpec("words", DIMENSION, scale=0.5), rule, capacity=9, dtype=np.float64)
    first = np.empty((IDS.size, DIMENSION))
    table.read(IDS, first)
    shard = Shard(Range(0, size), first.reshape(-1).copy(), ScheduledRule(rule, lambda batch: 0.9), policy(), size)
    shard.beside = ServerTables([table], rule, plain(np.dtype(np.float64)))
    for number in range(40):
        worker, gradient = int(random.choice(3, p=[0.7, 0.2, 0.1])), random.normal(size=size)
        shard.beside.receive(worker, [Part(0, IDS, gradient.reshape(first.shape))])
        shard.receive_push(worker, max(0, shard.clock - number % 5), gradient)
    shard.apply_rest()
    rows = np.empty_like(first)
    table.read(IDS, rows)
    assert rows.reshape(-1) == pytest.approx(shard.parameters, rel=1e-12)
    assert np.abs(rows - first).min() > 0
