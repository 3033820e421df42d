"""Checkpoints made to reach outside the run, or of unbounded size: nothing outside is touched."""

import os
import shutil
import time

import h5py
import numpy as np
import pytest
import saved

from irregular_files import IRREGULAR
from mpidl.cli import main
from mpidl.errors import MpidlError, UsageError, outcome
from mpidl.parameters import Range
from mpidl.storage.checkpoint import DATA, STATE
from mpidl.storage.checkpoints import checkpoint_of, read
from mpidl.storage.files import scratch
from mpidl.storage.integrity import recorded, seal
from mpidl.storage.tensor_files import open_file
from mpidl.storage.writer import CheckpointIndex, save_index
from watched import Watched

#: Seconds of this process in which each is refused. What waits for something outside never ends.
SOON = 5
HUGE = 10**13
SECRET = np.arange(4.0) + 1234


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return the directory of a valid run, and one outside it whose files must not be read."""
    run, outside = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("outside")
    unfinished = scratch(run / "checkpoints", 42)
    saved.save_files(unfinished)
    with h5py.File(unfinished / saved.OTHER, "r+") as file:
        file["buffers/seen"] = 7
    seal(unfinished / saved.OTHER)
    constants = {"frozen/weight": np.arange(6.0)}
    save_index(
        unfinished, CheckpointIndex(saved.LAYOUT, 3, saved.POSITION, "[run]\n", "0.0.1", {}, [saved.OTHER], constants)
    )
    shutil.copytree(run / "checkpoints" / "42", outside / "42")
    with h5py.File(outside / "secret.h5", "w") as file:
        for name in ("x", "parameters", "rule/sum", "files", "layout", "inner/x"):
            file[name] = SECRET
    (outside / "secret.bin").write_bytes(SECRET.tobytes())
    assert main(["export", str(run), "--to", "npz", "-o", str(outside / "model.npz")]) == 0
    return run, outside


def external(outside):
    """Return what makes a dataset whose values are in a file outside."""
    return lambda file, path: file.create_dataset(path, (4,), "f8", external=[(str(outside / "secret.bin"), 0, 32)])


def linked(outside, inner):
    def make(file, path):
        file[path] = h5py.ExternalLink(str(outside / "secret.h5"), inner)

    return make


def within(target):
    def make(file, path):
        file[path] = h5py.SoftLink(target)

    return make


def showing(source, name="x", growing=False):
    """Return what makes a virtual dataset of another file's values."""

    def make(file, path):
        every, longest = (slice(0, h5py.h5s.UNLIMITED), (None,)) if growing else (slice(None), None)
        layout = h5py.VirtualLayout((4,), "f8", maxshape=longest)
        layout[every] = h5py.VirtualSource(source, name, (4,), "f8", maxshape=longest)[every]
        file.create_virtual_dataset(path, layout)

    return make


def showing_numbered(file, path):
    """Make a virtual dataset of the values in any number of files."""
    virtual, source = h5py.h5s.create_simple((4,), (h5py.h5s.UNLIMITED,)), h5py.h5s.create_simple((4,))
    virtual.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), (4,), (4,))
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_virtual(virtual, b"shard-%b.h5", b"parameters", source)
    h5py.h5d.create(file.id, path.encode(), h5py.h5t.NATIVE_DOUBLE, virtual, properties)


def of_nothing(file, path):
    file.create_virtual_dataset(path, h5py.VirtualLayout((HUGE,), "f4"))


def unwritten(file, path):
    file.create_dataset(path, (HUGE,), "f4")


def compressed(file, path):
    """A gigabyte of zeros that takes a few kilobytes."""
    file.create_dataset(path, (1 << 28,), "f4", chunks=(1 << 20,), compression="gzip")
    file[path][: 1 << 20] = 0


def texts(file, path):
    file[path] = ["many"] * 1000


def without_a_value(file, path):
    file[path] = h5py.Empty("f4")


def in_itself(file, path):
    file.create_group(path)
    file[f"{path}/itself"] = file[path]
    file[f"{path}/again"] = file[path]


def deep(file, path):
    group = file.create_group(path)
    for _ in range(300):
        group = group.create_group("a")


def many_times(file, path):
    values = file.create_dataset(f"{path}/0", data=np.zeros(1 << 15))
    for number in range(1, 2000):
        file[f"{path}/{number}"] = values


#: What is put in the place of a dataset.
MAKERS = {
    "external storage": external,
    "an external link": lambda outside: linked(outside, "x"),
    "a link within": lambda outside: within("/inner"),
    "another file by its path": lambda outside: showing(str(outside / "secret.h5")),
    "a pipe": lambda outside: showing("pipe", growing=True),
    "nothing, of any size": lambda outside: of_nothing,
    "values that are not there": lambda outside: unwritten,
    "compressed zeros": lambda outside: compressed,
    "texts": lambda outside: texts,
    "no value": lambda outside: without_a_value,
    "itself": lambda outside: showing(".", "constants/frozen/weight"),
    "files by numbers": lambda outside: showing_numbered,
    "other values of a shard": lambda outside: showing("shard-0.h5", "clock"),
    "the same many times": lambda outside: many_times,
    "a group in itself": lambda outside: in_itself,
    "deep groups": lambda outside: deep,
}
#: These are read: a group more has no tensor.
HARMLESS = ["a group in itself", "deep groups"]
IN_PLACES = [
    *(("index.h5", "constants/frozen/weight", kind) for kind in MAKERS),
    *(("index.h5", "parameters/0-conv/weight", kind) for kind in list(MAKERS)[:13]),
    *(("shard-1.h5", "parameters", kind) for kind in list(MAKERS)[:10]),
    *((saved.OTHER, "buffers/seen", kind) for kind in list(MAKERS)[:9]),
    *(("index.h5", path, "an external link") for path in ("parameters", "constants", "layout", "files")),
    *(("index.h5", "layout", kind) for kind in ("external storage", "texts", "no value")),
    *(("shard-1.h5", path, "an external link") for path in ("rule", "rule/sum")),
    *(("shard-1.h5", "rule/sum", kind) for kind in ("external storage", "values that are not there")),
    *((saved.OTHER, path, "an external link") for path in ("buffers", "local")),
    (saved.OTHER, "local", "external storage"),
]
NESTED = "[" * 20_000 + "]" * 20_000
#: What attributes of a file are changed to.
ATTRIBUTES = [
    *(("index.h5", "shards", value) for value in (10**9, -1, 0, 1e300, np.nan, "many", [3, 3], None)),
    *(("index.h5", "version", value) for value in ("9" * 5000, None)),
    *(("index.h5", "step", value) for value in ("many", [1, 2], 43, None)),
    *(("index.h5", "samples", value) for value in ("many", np.inf, -1, 1e300)),
    *(("index.h5", name, value) for name in ("epoch", "seconds") for value in (np.nan, -1e300)),
    *(("index.h5", "next_portion", value) for value in (-5, 1e300, np.uint64(2**64 - 1))),
    *(("index.h5", "unfinished", value) for value in (3, [["a", "b"]], np.zeros((3, 3)))),
    *(("index.h5", "config", value) for value in (f"a = {NESTED}", ".".join("a" * 60_000) + " = 1", "run = 3", "[", 3)),
    *(("index.h5", "config", value) for value in (f"[run]\nname = '{'a' * 2**21}'", None)),
    *(("index.h5", "data", value) for value in (NESTED, f'{{"a": {NESTED}}}', "[1]", "{", 3)),
    *(("index.h5", "aliases", value) for value in (NESTED, '{"a": "absent"}', '{"a": 3}')),
    *(("index.h5", name, NESTED) for name in ("replicas", "coordinator", "rates", "beginning")),
    *(("shard-1.h5", "start", value) for value in ("many", 10**15, 10**18, -5, None)),
    *(("shard-1.h5", "stop", value) for value in (10**15, 0, [1, 2])),
    *(("shard-0.h5", "clock", value) for value in ("many", [1, 2], None, -1, 1e300, np.uint64(2**64 - 1))),
    *((saved.OTHER, "stop", value) for value in (10**15, -3, "many")),
]


@pytest.fixture
def hostile(places, tmp_path, capsys, monkeypatch):
    """Return a function that reads a copy of the run after a change to its checkpoint, and returns what refuses it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    run, outside = tmp_path / "run", places[1]
    shutil.copytree(places[0], run)

    def refusal(change):
        checkpoint = run / "checkpoints" / "42"
        change(checkpoint)
        watched, began = Watched(outside), time.process_time()
        try:
            refused = outcome(lambda: everything(checkpoint_of(run)))
            unchecked = outcome(lambda: initial(run if checkpoint.is_symlink() else checkpoint))
            code = main(["export", str(run), "--to", "npz"])
            assert time.process_time() - began < SOON
            assert not watched.touched()
        finally:
            watched.close()
        lines = capsys.readouterr().err.splitlines()
        assert (len(lines), lines[:1]) == ((1, [f"mpidl: {lines[0]}"[7:]]) if code else (0, []))
        if code == 0:
            assert not any(np.isin(values, SECRET).any() for values in np.load(run / "model.npz").values())
        assert "MPIDL_DEBUG" not in f"{refused} {unchecked} {lines}"  # no internal error
        return refused

    return refusal


def reseal(checkpoint):
    """Seal the files of a checkpoint, as if they had been saved as they are."""
    with h5py.File(checkpoint / "index.h5", "r+") as file:
        seals = file["files"].attrs if isinstance(file.get("files", getlink=True), h5py.HardLink) else {}
        for name in ("shard-0.h5", "shard-1.h5", "shard-2.h5", saved.OTHER):
            seal(checkpoint / name)
            seals[name] = str(recorded(checkpoint / name))
    seal(checkpoint / "index.h5")


def everything(checkpoint):
    """Read all that a run which is resumed, evaluated or exported reads of a checkpoint."""
    whole = Range(0, checkpoint.size)
    read(checkpoint)
    checkpoint.shard_state(whole)
    checkpoint.clock(whole)
    checkpoint.replica_vectors(0)
    checkpoint.kept_by(0, STATE)
    checkpoint.kept_by(0, DATA)


def initial(checkpoint):
    """Read what initial values are taken from, without a check of checksums."""
    file = open_file(checkpoint)
    for name in file.shapes:
        file.read(name)


@pytest.mark.parametrize(("name", "path", "kind"), IN_PLACES)
def test_values_that_are_not_its_own(hostile, places, name, path, kind):
    def change(checkpoint):
        os.mkfifo(checkpoint / "pipe")
        with h5py.File(checkpoint / name, "r+") as file:
            if path in file:
                del file[path]
            MAKERS[kind](places[1])(file, path)
        reseal(checkpoint)

    assert isinstance(hostile(change), MpidlError) or kind in HARMLESS


@pytest.mark.parametrize("path", ["parameters", "rule/sum"])
@pytest.mark.parametrize("dtype", ["S3", "c16"])
def test_vectors_of_no_real_numbers(hostile, path, dtype):
    def change(checkpoint):
        with h5py.File(checkpoint / "shard-1.h5", "r+") as file:
            values = file[path][...].astype(dtype)
            del file[path]
            file[path] = values
        reseal(checkpoint)

    assert isinstance(hostile(change), MpidlError)


@pytest.mark.parametrize(("name", "attribute", "value"), ATTRIBUTES)
def test_numbers_and_texts_without_bounds(hostile, name, attribute, value):
    def change(checkpoint):
        with h5py.File(checkpoint / name, "r+") as file:
            if value is None:
                del file.attrs[attribute]
            else:
                file.attrs[attribute] = value
        reseal(checkpoint)

    assert isinstance(hostile(change), MpidlError)


@pytest.mark.parametrize(
    "name", ["{outside}/42/shard-0.h5", "/dev/zero", "..", "a/b.h5", "../42/shard-0.h5", "a\nb.h5"]
)
def test_names_of_files_elsewhere(hostile, places, name):
    def change(checkpoint):
        given = name.format(outside=os.path.relpath(places[1], checkpoint))
        with h5py.File(checkpoint / "index.h5", "r+") as file:
            file["files"].attrs[given] = file["files"].attrs["shard-0.h5"]
        seal(checkpoint / "index.h5")

    assert isinstance(hostile(change), MpidlError)


@pytest.mark.parametrize("name", ["index.h5", "shard-1.h5", saved.OTHER])
@pytest.mark.parametrize("make", IRREGULAR)
def test_what_is_no_regular_file(hostile, places, name, make):
    def change(checkpoint):
        (checkpoint / name).unlink()
        make(checkpoint / name, places[1] / "42")

    assert isinstance(hostile(change), MpidlError)


def test_a_checkpoint_that_is_a_link(hostile, places):
    def change(checkpoint):
        shutil.rmtree(checkpoint)
        checkpoint.symlink_to(places[1] / "42")

    assert "a link, expected a directory" in str(hostile(change))


def test_linked_checkpoints_are_read(places, tmp_path):
    (tmp_path / "checkpoints").symlink_to(places[0] / "checkpoints")
    everything(checkpoint_of(tmp_path))


@pytest.mark.parametrize("step", [None, 42])
def test_checkpoints_of_another_run_are_not_read(places, tmp_path, step):
    other, run = tmp_path / "other", tmp_path / "run"
    shutil.copytree(places[0], other)
    (other / "config.toml").touch()
    run.mkdir()
    (run / "checkpoints").symlink_to(other / "checkpoints")
    watched = Watched(other)
    try:
        with pytest.raises(UsageError, match="checkpoints: a link into another run, expected"):
            checkpoint_of(run, step)
        assert not watched.touched()
    finally:
        watched.close()
