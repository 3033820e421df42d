"""Statistics among the parameters, such as a running variance, which many replicas move."""

import numpy as np
import pytest

from mpidl.algorithms import ALGORITHMS, Adag, Diloco, Downpour, Dynsgd, Exchange, Softsync
from mpidl.data import Batch
from mpidl.data.dataset import ArraySplit
from mpidl.engines.virtual.times import Constant, Exponential, Times
from mpidl.parameters import Range
from mpidl.rules import Nesterov, Sgd

SIZE, MOMENTUM, VARIANCE = 12, 0.1, 0.01
STATISTICS = [Range(3, 5), Range(8, 9)]
CASES = {
    **{name: cls() for name, cls in ALGORITHMS.items() if not cls.coordinated},
    "accrued": Downpour(n_push=30),
    "accrued between fetches": Downpour(n_push=15, n_fetch=15),
    "local steps": Downpour(n_push=15, n_fetch=15, rate=0.01),
    "ahead": Downpour(overlap=True),
    "long windows": Dynsgd(window=40),
    "long windows by norm": Adag(window=40, damping="norm"),
    "softsync": Softsync(n=4),
    "asynchronous diloco": Diloco(asynchronous=True, window=40),
    "bound": Downpour(max_staleness=8),
    "signs": Downpour(wire="onebit", wire_fetch="onebit"),
    "signs ahead": Downpour(wire="onebit", wire_fetch="onebit", overlap=True),
    "integers": Dynsgd(window=5, wire="int8", wire_fetch="int8"),
    "the largest": Downpour(wire="topk:0.1"),
}


class Averaging:
    """A model with running variances of batches whose variance is always the same, far below the first value, 1."""

    statistics = STATISTICS

    def __init__(self):
        self.parameters = np.ones(SIZE)
        self.seen = [np.ones(3)]
        self._random = np.random.default_rng(0)
        self._places = np.concatenate([np.arange(*part) for part in STATISTICS])

    def loss_and_gradient(self, batch: Batch):
        values = self.parameters[self._places]
        self.seen.append(values)
        # Larger than the statistics' changes, and of either sign, as gradients may be.
        gradient = self._random.normal(size=SIZE)
        gradient[self._places] = MOMENTUM * (values - VARIANCE)
        return 0.0, gradient


@pytest.mark.parametrize("times", [Times(Constant(1.0)), Times(Exponential(1.0), Exponential(0.5), Exponential(0.5))])
@pytest.mark.parametrize("replicas", [2, 16])
@pytest.mark.parametrize("case", CASES)
def test_a_running_variance_stays_one(lab, case, replicas, times):
    algorithm = CASES[case]
    model, inputs = Averaging(), np.zeros((480, 1), np.float32)
    nesterov = isinstance(algorithm, Diloco)
    # A few pushes of each replica show it; what accrues over many batches pushes seldom.
    window = max(getattr(algorithm, key, 1) or 20 for key in ("window", "n_push"))
    epochs = 3 if window > 10 else 1
    lab.trained(
        (model, ArraySplit(inputs, inputs)), algorithm, rule=Nesterov(0.7, 0.9) if nesterov else Sgd(0.05),
        servers=1 if algorithm.exchange is Exchange.SHARED_MEMORY else 2, replicas=replicas, epochs=epochs * replicas,
        times=times, of_shards={"statistics": STATISTICS}, of_steps={"statistics": STATISTICS},
    )  # fmt: skip
    seen = np.array(model.seen)
    assert seen.min() > 0
    assert seen.max() <= 1
    assert seen[-1].max() < 0.9
