"""Sandblaster with rows of the inverse Hessian on servers' ranks."""

import h5py
import numpy as np
import pytest

import mpidl
from mpidl.data import Dataset

pytestmark = pytest.mark.mpi(min_size=3)


SIZE = 700  # so that vectors are longer than messages which MPI libraries send at once


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
