"""What the coordinator hears in the place of a worker whose process has died."""

from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.survival.settlement import Settlement
from mpidl.transport.protocol import WORKER_STATUS, Order, Phase


@pytest.fixture
def heard():
    """Return a settlement that has marked order 2, and what its marks and reports are."""
    found, marks, reports = object.__new__(Settlement), [], []
    found._number, found._marked, found._status = 4, 2, np.zeros(1, WORKER_STATUS)
    found._status["batches"], found._status["samples"] = 3, 12
    found._estates = SimpleNamespace(entries=lambda worker: [[5, 1, 4], [8, 2, 8]], claimed=lambda worker: [-1, -3])
    found._link = SimpleNamespace(
        orders=SimpleNamespace(read=lambda: Order(found.number, 0, Phase.TRAIN), taken=lambda: 6),
        pushes=SimpleNamespace(mark=lambda order: marks.append(order) or True),
        reports=SimpleNamespace(saved=reports.append),
    )
    found._backoff = SimpleNamespace(until=lambda ready: ready())
    return found, marks, reports


@pytest.mark.parametrize("ended", [False, True])
def test_an_order_is_obeyed_once(heard, ended):
    settlement, marks, reports = heard
    for settlement.number in (1, 2, 3, 3, 4, 4):
        settlement._obey(ended)
    assert marks == ([] if ended else [3, 4])
    assert [saved.order for saved in reports] == [3, 4]


def test_a_checkpoint_has_the_worker_s_counts_and_what_it_took_since_the_order_or_took_again(heard):
    settlement, _, reports = heard
    settlement.number = 3
    settlement._obey(ended=True)
    (position,) = reports[0].replicas.values()
    assert list(reports[0].replicas) == [4]
    assert (position.batches, position.samples, sorted(position.recent)) == (3, 12, [-3, -1, 8])
