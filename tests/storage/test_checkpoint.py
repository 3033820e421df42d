"""Checkpoints: written by any number of shards, read by any other, whole or not at all."""

import threading
import time
import tracemalloc
from dataclasses import replace

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import LAYOUT, POSITION, save

from mpidl.algorithms import Sandblaster
from mpidl.config import from_dict
from mpidl.errors import MpidlError, UsageError
from mpidl.job.build import build
from mpidl.job.fill import fill
from mpidl.job.placed import place
from mpidl.parameters import Layout, Range, shards
from mpidl.runs.start import run
from mpidl.storage import checkpoint, checkpoints, writer
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.files import scratch
from mpidl.storage.writer import BackgroundTask, CheckpointIndex, save_index, save_shard


@given(
    shapes=st.lists(st.lists(st.integers(1, 7), max_size=4).map(tuple), min_size=1, max_size=4),
    before=st.integers(1, 9),
    after=st.integers(1, 9),
)
def test_any_number_of_shards_reads_what_any_other_wrote(tmp_path_factory, shapes, before, after):
    layout = Layout((f"{i}-layer/weight", shape) for i, shape in enumerate(shapes))
    directory = tmp_path_factory.mktemp("run")
    vectors = save(directory, layout, min(before, layout.size))
    read = Checkpoint(directory / "42")
    for name, vector in vectors.items():
        parts = [read.read(name, part) for part in shards(layout.size, min(after, layout.size))]
        assert np.array_equal(np.concatenate(parts), vector)
    with h5py.File(directory / "42" / "index.h5") as index:
        for name, vector in vectors.items():
            for tensor, view in layout.views(vector).items():
                assert np.array_equal(index[f"{name}/{tensor}"][...], view)


def test_it_keeps_position_clock_and_configuration(tmp_path):
    save(tmp_path)
    read = Checkpoint(tmp_path / "42")
    assert read.position == POSITION
    assert (read.sections, read.states, read.size) == ({"run": {}}, ("sum",), LAYOUT.size)
    parts = shards(LAYOUT.size, 3)
    assert read.clock(parts[1]) == 101
    assert read.clock(Range(0, LAYOUT.size)) == 102
    with h5py.File(tmp_path / "42" / "index.h5") as index:
        attributes = dict(index.attrs)
    assert {k: attributes[k] for k in ("step", "epoch", "samples", "version")} == {
        "step": 42, "epoch": 1.5, "samples": 1337, "version": "0.0.1",
    }  # fmt: skip


def test_it_moves_as_a_directory(tmp_path):
    vectors = save(tmp_path)
    (tmp_path / "42").rename(tmp_path / "elsewhere")
    with h5py.File(tmp_path / "elsewhere" / "index.h5") as index:
        assert np.array_equal(index["parameters/1-dense/weight"][...].ravel(), vectors["parameters"][-33:])


def test_nothing_appears_before_everything_is_written(tmp_path):
    save(tmp_path)
    unfinished = scratch(tmp_path, 43)
    vector = np.zeros(LAYOUT.size, np.float32)
    save_shard(unfinished, 0, Range(0, LAYOUT.size), {"parameters": vector, "clock": np.array(1)})
    assert checkpoints.steps(tmp_path) == [42]
    checkpoints.sweep(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["42"]


def test_large_shards_are_written_slice_by_slice(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "SLICE", 64)
    vector = np.arange(1001, dtype=np.float32)
    save_shard(tmp_path, 0, Range(0, 1001), {"parameters": vector, "clock": np.array(1)})
    with h5py.File(tmp_path / "shard-0.h5") as file:
        assert np.array_equal(file["parameters"][...], vector)


def test_a_slice_is_read_without_the_rest(tmp_path):
    layout = Layout([("0-dense/weight", (1024, 1024))])
    vectors = save(tmp_path, layout, servers=2)
    read = Checkpoint(tmp_path / "42")
    middle = Range(layout.size // 2 - 5, layout.size // 2 + 5)
    tracemalloc.start()
    try:
        part = read.read("rule/sum", middle)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert np.array_equal(part, vectors["rule/sum"][middle.start : middle.stop])


@pytest.mark.parametrize("missing", ["index.h5", "shard-2.h5"])
def test_a_missing_or_broken_file_is_one_line(tmp_path, missing):
    save(tmp_path)
    (tmp_path / "42" / missing).write_bytes(b"no HDF5")
    with pytest.raises(UsageError, match="42: not a readable checkpoint: ") as broken:
        Checkpoint(tmp_path / "42")
    (tmp_path / "42" / missing).unlink()
    with pytest.raises(UsageError, match="42: not a readable checkpoint: ") as gone:
        Checkpoint(tmp_path / "42")
    assert all("\n" not in str(error.value) for error in (broken, gone))


EVERYTHING = Range(0, LAYOUT.size)
READERS = {
    "read": ("shard-1.h5", lambda read: read.read("parameters", EVERYTHING)),
    "shard_state": ("shard-0.h5", lambda read: read.shard_state(EVERYTHING)),
    "clock": ("shard-2.h5", lambda read: read.clock(EVERYTHING)),
    "constants": ("index.h5", lambda read: read.arrays("constants")),
    "replica_vectors": ("replica-0.h5", lambda read: read.replica_vectors(0)),
    "buffers": ("replica-0.h5", lambda read: read.kept_by(0, "buffers")),
}


@pytest.mark.parametrize(("file", "reader"), READERS.values(), ids=READERS)
def test_a_file_that_becomes_unreadable_is_one_line(tmp_path, file, reader):
    save(tmp_path)
    read, path = Checkpoint(tmp_path / "42"), tmp_path / "42" / file
    path.write_bytes(b"no HDF5")
    with pytest.raises(MpidlError, match=rf"^{path}: can't be read: [^\n]+$"):
        reader(read)


@pytest.mark.parametrize("reader", sorted(READERS.keys() - {"replica_vectors"}))  # A replica may have kept none.
def test_a_checkpoint_that_vanishes_is_one_line(tmp_path, reader):
    save(tmp_path)
    read = Checkpoint(tmp_path / "42")
    (tmp_path / "42").rename(tmp_path / "43")
    with pytest.raises(MpidlError, match=rf"^{tmp_path}/42.*: can't be read: No such file or directory$"):
        READERS[reader][1](read)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MpidlError, match=r"shard-0.h5: can't be written: Not a directory$"):
        save_shard(tmp_path / "file" / ".1", 0, Range(0, 1), {"parameters": np.zeros(1), "clock": np.array(0)})


def test_a_task_in_the_background_ends_once_and_passes_its_error_on():
    task, begin, ended = BackgroundTask(), threading.Event(), []
    assert not task.ended()
    task.begin(lambda: (begin.wait(), ended.append(1)))
    assert task.active
    assert not task.ended()
    begin.set()
    while not task.ended():
        time.sleep(1e-3)
    assert (ended, task.active, task.ended()) == ([1], False, False)
    task.begin(lambda: 1 / 0)
    time.sleep(0.1)
    with pytest.raises(ZeroDivisionError):
        task.ended()
    assert not task.active


def test_threads_that_write_stay_for_later_checkpoints():
    """A new one could not begin once there is no more memory."""
    threads = []
    for task in (BackgroundTask() for _ in range(50)):
        task.begin(lambda: threads.append(threading.current_thread()))
        while not task.ended():
            time.sleep(1e-3)
    assert len(set(threads)) < 50


VECTORS = ["gradient", "previous", "origin", "direction", "s0", "s1", "s2", "y0", "y1", "y2"]


def sandblaster(path, **run):
    """Return the configuration of a small run of Sandblaster, in a directory."""
    return from_dict(
        {
            "run": {"epochs": 2, "dir": str(path), **run},
            "data": {"source": "digits"},
            "model": {"layer": [{"type": "dense", "units": 10}]},
            "algorithm": {"name": "sandblaster", "history": 2},
        }
    )


def test_sandblasters_vectors_are_saved_beside_the_parameters(tmp_path):
    run(sandblaster(tmp_path))
    saved = checkpoints.latest(tmp_path / "run")
    with h5py.File(saved.path / "shard-0.h5") as file:
        assert sorted(file["rule"]) == sorted(VECTORS)
        gradient = file["rule/gradient"][...]
    assert gradient.any()
    job = place(build(sandblaster(tmp_path), saved), 1)
    shard = fill(job, Range(0, job.layout.size), np.empty(job.layout.size, np.float32), 100)
    assert list(shard.vectors) == ["parameters", *VECTORS]
    np.testing.assert_array_equal(shard.vectors["gradient"], gradient)
    run(sandblaster(tmp_path, epochs=6), resume=tmp_path / "run")
    resumed = checkpoints.latest(tmp_path / "run")
    assert resumed.position.state["iteration"] > saved.position.state["iteration"] > 0


def test_settings_that_an_earlier_version_did_not_know_had_their_defaults(tmp_path):
    run(sandblaster(tmp_path))
    saved = checkpoints.latest(tmp_path / "run")
    assert saved.sections["algorithm"].pop("method") == "lbfgs"
    assert build(sandblaster(tmp_path), saved).same_algorithm
    assert not build(replace(sandblaster(tmp_path), algorithm=Sandblaster(history=2, unit=3)), saved).same_algorithm


def test_sandblaster_starts_anew_from_the_parameters_of_another_algorithm(tmp_path):
    save(tmp_path, Layout([("0-dense/weight", (64, 10)), ("0-dense/bias", (10,))]))
    saved = Checkpoint(tmp_path / "42")
    job = place(build(sandblaster(tmp_path), saved), 1)
    shard = fill(job, Range(0, 650), np.empty(650, np.float32), 100)
    np.testing.assert_array_equal(shard.parameters, saved.read("parameters", Range(0, 650)))
    assert list(shard.vectors) == ["parameters", *VECTORS]
    assert not any(vector.any() for name, vector in shard.vectors.items() if name != "parameters")


@pytest.mark.parametrize(
    ("algorithm", "line"),
    [
        ({"name": "downpour"}, "server.rule: adagrad keeps sum, {} was saved with gradient"),
        ({"name": "easgd"}, "algorithm.name: easgd keeps nothing, {} was saved with gradient"),
    ],
)
def test_a_checkpoint_of_other_vectors_is_one_line(tmp_path, algorithm, line):
    directory = scratch(tmp_path, 42)
    layout = Layout([("0-dense/weight", (64, 10)), ("0-dense/bias", (10,))])
    vectors = dict.fromkeys(("parameters", "rule/gradient"), np.zeros(650, np.float32))
    save_shard(directory, 0, Range(0, 650), vectors | {"clock": np.array(1)})
    save_index(directory, CheckpointIndex(layout, 1, POSITION, "", "0.0.1", {}))
    values = {"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]}}
    with pytest.raises(UsageError) as error:
        build(from_dict(values | {"algorithm": algorithm}), Checkpoint(tmp_path / "42"))
    assert str(error.value) == line.format(tmp_path / "42")


def test_a_key_that_decides_which_vectors_servers_keep_is_named(tmp_path):
    data, layers = {"source": "digits"}, {"layer": [{"type": "dense", "units": 10}]}
    values = {"run": {"epochs": 1, "dir": str(tmp_path)}, "data": data, "model": layers}
    algorithm = {"name": "sandblaster", "method": "bfgs"}
    run(from_dict(values | {"algorithm": algorithm}))
    saved = checkpoints.latest(tmp_path / "run")
    with pytest.raises(
        UsageError, match=r"^algorithm.method: lbfgs, but .* was saved with bfgs, with which servers keep"
    ):
        build(from_dict(values | {"algorithm": algorithm | {"method": "lbfgs"}}), saved)


def test_a_resumed_shard_has_its_clock_back(tmp_path):
    layers = {"layer": [{"type": "dense", "units": 10}]}
    config = from_dict({"run": {"epochs": 1, "dir": str(tmp_path)}, "data": {"source": "digits"}, "model": layers})
    run(config)
    job = place(build(config, checkpoints.latest(tmp_path / "run")), 1)
    shard = fill(job, Range(0, job.layout.size), np.empty(job.layout.size, np.float32), 100)
    assert shard.clock == job.position.step == 12


def test_a_checkpoint_of_a_later_version_is_one_line(tmp_path, monkeypatch):
    save(tmp_path)
    monkeypatch.setattr(checkpoint, "VERSION", "0.0.0")
    with pytest.raises(UsageError, match=r"42: saved by mpidl 0.0.1, this is mpidl 0.0.0; use that version or a later"):
        Checkpoint(tmp_path / "42")


def test_an_index_that_says_something_else_is_one_line(tmp_path):
    save(tmp_path)
    with h5py.File(tmp_path / "42" / "index.h5", "r+") as file:
        file.attrs["replicas"] = "[{}]"
    with pytest.raises(UsageError, match=r"42: not a readable checkpoint: Object missing required field"):
        Checkpoint(tmp_path / "42")
