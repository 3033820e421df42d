"""`mpidl predict` on ranks: one file, with the same bits whatever their number; what one rank meets, all raise."""

import h5py
import numpy as np
import pytest
from small_runs import digits

from mpidl import UsageError
from mpidl.config import from_dict
from mpidl.nn.evaluation import BATCH

pytestmark = pytest.mark.mpi


@pytest.fixture
def run(comm, tmp_path):
    """Return the directory of a run, the same on all ranks."""
    from mpidl.job.build import build
    from mpidl.runs.one_process import OneProcess

    if comm.rank == 0:
        OneProcess(build(from_dict(digits(tmp_path, run={"steps": 2})))).run()
    return comm.bcast(tmp_path / "run")


@pytest.mark.parametrize("samples", [5, 5 * BATCH + 3])
def test_the_number_of_ranks_changes_no_bit(comm, run, samples):
    from mpidl.runs.evaluate import predict
    from mpidl.runs.load import load

    inputs = np.random.default_rng(3).random((samples, 8, 8), np.float32)
    if comm.rank == 0:
        np.save(run / "data.npy", inputs)
    comm.Barrier()
    result = predict(run, str(run / "data.npy"), run / "out.h5")
    assert (result["samples"], result["shape"]) == (samples, (10,))
    if comm.rank == 0:
        network = load(run)
        batches = [network.predict(inputs[start : start + BATCH]) for start in range(0, samples, BATCH)]
        with h5py.File(run / "out.h5") as file:
            np.testing.assert_array_equal(file["outputs"], np.concatenate(batches))


def test_what_one_rank_meets_is_raised_on_all(comm, run):
    from mpidl.runs.evaluate import predict

    if comm.rank == 0:
        inputs = np.ones((4 * BATCH, 8, 8), np.float32)
        inputs[(comm.size - 1) * BATCH + 1, 0, 0] = np.nan
        np.save(run / "data.npy", inputs)
    comm.Barrier()
    with pytest.raises(UsageError, match=rf"NaN or infinity in sample {(comm.size - 1) * BATCH + 1}, expected"):
        predict(run, str(run / "data.npy"), run / "out.h5")
    comm.Barrier()
    assert not list(run.glob("out.h5*"))
