"""The training loss of a run on real ranks: that of all samples of the last whole epoch, of whichever worker."""

import time

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Downpour, Sync

pytestmark = pytest.mark.mpi(min_size=3)

SAMPLES = 48
Y = (10.0 ** np.arange(SAMPLES, dtype=np.float64) ** 0.3)[:, None]
DATA = mpidl.Arrays((np.ones((SAMPLES, 1)), Y), (np.ones((4, 1)), Y[:4]))


class Still:
    """Least squares without a step; the sleep lets the coordinator look within an epoch."""

    def __init__(self):
        self.parameters = np.zeros(3)

    def loss_and_gradient(self, batch):
        time.sleep(0.03)
        return float(np.mean(np.square(batch.targets))), np.full(3, 1e-30)


@pytest.mark.parametrize("algorithm", [Downpour(), Sync()], ids=lambda each: each.name)
def test_it_is_that_of_the_whole_epoch_whenever_reports_fall(comm, tmp_path, algorithm):
    summary = mpidl.train(
        Still(), DATA, algorithm=algorithm, rule=mpidl.Sgd(1.0), epochs=3, batch=4, portion=4, report=1e-6,
        dir=comm.bcast(tmp_path), device="cpu",
    )  # fmt: skip
    assert summary["train_loss"] == pytest.approx(float(np.mean(np.square(Y))), rel=1e-9)
