"""The training loss of a run on real ranks: that of all samples of the last whole epoch, of whichever worker."""

import pytest

import mpidl
from mpidl.algorithms import Downpour, Sync
from still import BATCH, DATA, WHOLE, Still

pytestmark = pytest.mark.mpi(min_size=4)


@pytest.mark.parametrize("algorithm", [Downpour(), Sync()], ids=lambda each: each.name)
def test_it_is_that_of_the_whole_epoch_whenever_reports_fall(comm, tmp_path, algorithm):
    summary = mpidl.train(
        Still(), DATA, algorithm=algorithm, rule=mpidl.Sgd(1.0), epochs=3, batch=BATCH, portion=BATCH, report=1e-6,
        dir=comm.bcast(tmp_path), device="cpu",
    )  # fmt: skip
    assert summary["train_loss"] == pytest.approx(WHOLE, rel=1e-9)
