"""The rows of matrices in checkpoints: read by any number of servers in any layout, and runs that go on with them."""

import os

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved import POSITION, save

import mpidl
from cut_layouts import cut_layouts, in_layout, shapes_by_name, tensors_of
from mpidl.data import Dataset
from mpidl.errors import MpidlError
from mpidl.parameters import shards
from mpidl.storage import checkpoints, vectors
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.files import describe, scratch
from mpidl.storage.writer import CheckpointIndex, save_index, save_shard


@pytest.fixture(autouse=True)
def unsynchronised(monkeypatch):
    """Don't wait for the disk: no power fails here. Read few elements at a time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(vectors, "BLOCK", 20)


def numbers(layout):
    """Return a vector with a number for each element of the tensors, and the matrix of pairs of these numbers."""
    vector = in_layout(tensors_of(layout.shapes, start=1), layout).astype(np.float64)
    return vector, 1000 * vector[:, None] + vector


@settings(max_examples=10)
@given(data=st.data(), shapes=shapes_by_name)
def test_any_layout_on_any_servers_reads_what_any_other_wrote(tmp_path_factory, data, shapes):
    old, new = (data.draw(cut_layouts(shapes)) for _ in range(2))
    before, after = (data.draw(st.integers(1, min(old.size, 5))) for _ in range(2))
    directory, (vector, matrix) = tmp_path_factory.mktemp("run"), numbers(old)
    for number, part in enumerate(shards(old.size, before)):
        rows = {"parameters": vector[slice(*part)], "matrix/inverse": matrix[slice(*part)], "clock": np.array(1)}
        save_shard(scratch(directory, 42), number, part, rows)
    save_index(scratch(directory, 42), CheckpointIndex(old, before, POSITION, "[run]\n", "0.0.1", {}))
    saved = Checkpoint(directory / "42")
    assert saved.states == ()
    for part in shards(new.size, after):
        np.testing.assert_array_equal(saved.rows("inverse", part, new), numbers(new)[1][slice(*part)])
        # The matrix is in no vector and no counter.
        assert sorted(saved.shard_state(part, new)) == ["clock", "parameters"]


def test_a_file_with_rows_of_another_matrix_is_one_line(tmp_path):
    save(tmp_path)
    saved = Checkpoint(tmp_path / "42")
    whole, _ = describe(saved.shards[0])
    with pytest.raises(MpidlError, match="matrix"):
        saved.rows("inverse", whole, saved.layout)
    with h5py.File(saved.shards[0], "r+") as file:
        file["matrix/inverse"] = np.zeros((whole.size, 2))
    with pytest.raises(
        MpidlError, match=rf"shard-0.h5: matrix/inverse: shape .*, expected \({whole.size}, {saved.size}\)$"
    ):
        saved.rows("inverse", whole, saved.layout)


def test_a_run_goes_on_with_another_number_of_servers(tmp_path, least_squares):
    def train(name, epochs, servers, **options):
        model, split = least_squares()
        algorithm = mpidl.Sandblaster(method="ssbroyden")
        summary = mpidl.train(
            model, Dataset("test", (13,), None, split, split), algorithm=algorithm, dir=tmp_path, name=name,
            epochs=epochs, servers=servers, batch=20, **options,
        )  # fmt: skip
        return summary, model.parameters.copy()

    unbroken, expected = train("unbroken", 7, 1)
    before, _ = train("broken", 5, 2)
    saved = checkpoints.latest(tmp_path / "broken")
    assert saved.position.state["updates"] == saved.position.state["iteration"] > 2
    with h5py.File(saved.shards[1]) as file:
        rows = file["matrix/inverse"]
        assert (rows.shape, rows.dtype) == ((6, 13), np.float64)
    # A run that is resumed evaluates the gradient once more.
    resumed, found = train("broken", 8, 3, resume=True)
    assert resumed["iteration"]["number"] == unbroken["iteration"]["number"]
    assert resumed["iteration"]["objective"] < before["iteration"]["objective"]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
