"""What the coordinator hears in the place of a worker whose process has died."""

from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.survival.worker_recovery import WorkerRecovery
from mpidl.transport.protocol import WORKER_STATUS, Order, Phase


class Hears(WorkerRecovery):
    """The settlement of worker 4, which has marked order 2, with its marks and reports."""

    def __init__(self):
        self.number, self.marks, self.reports = 0, [], []
        self._number, self._marked, self._status = 4, 2, np.zeros(1, WORKER_STATUS)
        self._status["batches"], self._status["samples"] = 3, 12
        self._portions = SimpleNamespace(entries=lambda worker: [[5, 1, 4], [8, 2, 8]], claimed=lambda worker: [-1, -3])
        self._link = SimpleNamespace(
            orders=SimpleNamespace(read=lambda: Order(self.number, 0, Phase.TRAIN), taken=lambda: 6),
            pushes=SimpleNamespace(mark=lambda order: self.marks.append(order) or True),
            reports=SimpleNamespace(saved=self.reports.append),
        )
        self._backoff = SimpleNamespace(until=lambda ready: ready())

    def obey(self, number, ended):
        self.number = number
        self._obey(ended)


@pytest.mark.parametrize("ended", [False, True])
def test_an_order_is_obeyed_once(ended):
    settlement = Hears()
    for number in (1, 2, 3, 3, 4, 4):
        settlement.obey(number, ended)
    assert settlement.marks == ([] if ended else [3, 4])
    assert [saved.order for saved in settlement.reports] == [3, 4]


def test_a_checkpoint_has_the_worker_s_counts_and_what_it_took_since_the_order_or_took_again():
    settlement = Hears()
    settlement.obey(3, ended=True)
    replicas = settlement.reports[0].replicas
    (position,) = replicas.values()
    assert list(replicas) == [4]
    assert (position.batches, position.samples, sorted(position.recent)) == (3, 12, [-3, -1, 8])
