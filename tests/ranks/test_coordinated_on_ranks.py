"""Networks that are stacked, and rows of the inverse Hessian on servers: all samples once, and runs that go on."""

import time
from pathlib import Path

import h5py
import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Stacking
from mpidl.data import Dataset
from mpidl.nn import Network

pytestmark = pytest.mark.mpi(min_size=4)
ALGORITHM = Stacking(modules=2, hidden=20, ridge=0.2, unit=1)


def check(run):
    """Compare the upper weights of both modules with the ridge regression on all training samples."""
    network, train = mpidl.load(run), mpidl.Digits().open().train
    samples = train.gather(np.arange(train.samples))
    targets = np.eye(10)[samples.targets]
    for number in (1, 2):
        hidden = network.values(samples, 3 * number)[0][-2]
        above = np.concatenate([hidden, np.sqrt(0.2) * np.eye(20)])
        beside = np.concatenate([targets, np.zeros((20, 10))])
        upper = network.layout.views(network.parameters)[f"outputs-{number}/weight"]
        np.testing.assert_allclose(upper, np.linalg.lstsq(above, beside, rcond=None)[0], rtol=0, atol=1e-10)


def test_upper_weights_are_those_of_all_samples(comm, shared_path, monkeypatch):
    """One worker is slow, so that another one takes its units, too; then there are more servers in its place."""
    values = Network.values

    def slow(self, batch, layers):
        time.sleep(0.01 * (comm.rank == comm.size - 1))
        return values(self, batch, layers)

    monkeypatch.setattr(Network, "values", slow)
    options = {
        "data": mpidl.Digits(), "algorithm": ALGORITHM, "batch": 128, "portion": 128, "dtype": "float64",
        "dir": str(shared_path), "name": "run",
    }  # fmt: skip
    first = mpidl.train(epochs=8, **options)
    monkeypatch.undo()
    assert first["test_accuracy"] > 0.7
    assert first["iteration"]["portions"] == 12 * (first["iteration"]["portions"] // 12)
    run = Path(first["run_dir"])
    if comm.rank == 0:
        check(run)
    again = mpidl.train(epochs=12, servers=comm.size - 2, resume=True, **options)
    assert again["iteration"]["objective"] < first["iteration"]["objective"]
    if comm.rank == 0:
        check(run)


SIZE = 700  # so that vectors are longer than messages which MPI libraries send at once


@pytest.mark.mpi(min_size=3)
def test_a_run_goes_on_with_another_number_of_servers(comm, shared_path, least_squares):
    def train(name, epochs, servers, **options):
        model, split = least_squares(SIZE)
        summary = mpidl.train(
            model, Dataset("test", (SIZE,), None, split, split), dir=shared_path, name=name, epochs=epochs,
            algorithm=mpidl.Sandblaster(method="ssbroyden", unit=1), servers=servers, batch=20, **options,
        )  # fmt: skip
        return summary["iteration"], model.parameters.copy()

    unbroken, expected = train("unbroken", 7, 1)
    before, _ = train("broken", 5, comm.size - 2)
    if comm.rank == 0:
        # The last checkpoint's files together have all rows, which are symmetric.
        last = max((shared_path / "broken" / "checkpoints").iterdir(), key=lambda path: int(path.name))
        rows = []
        for number in range(comm.size - 2):
            with h5py.File(last / f"shard-{number}.h5") as file:
                rows.append(file["matrix/inverse"][...])
        matrix = np.concatenate(rows)
        assert matrix.shape == (SIZE, SIZE)
        np.testing.assert_allclose(matrix, matrix.T, rtol=1e-9, atol=1e-12)
    resumed, found = train("broken", 8, 1, resume=True)
    assert resumed["number"] == unbroken["number"] > before["number"]
    if comm.rank > comm.size - 2:
        np.testing.assert_allclose(found, expected, rtol=1e-8)
