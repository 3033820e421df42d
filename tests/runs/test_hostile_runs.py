"""Untrusted run directories: nothing outside is read, and every command ends with one line."""

import os
import shutil
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from irregular_files import IRREGULAR
from mpidl.cli import main
from mpidl.errors import UsageError
from mpidl.paths import LONGEST
from mpidl.storage.tensor_files import open_file
from watched import Watched

#: Seconds of this process in which a command ends. What waits for something outside never ends.
SOON = 5
JOB = """
[run]
name = "run"
epochs = 1
patience = 5
[data]
source = "digits"
validation = 0.2
[[model.layer]]
type = "dense"
units = 10
[device]
kind = "cpu"
"""
#: Commands that read a file, by its name.
COMMANDS = [
    ("config.toml", ["evaluate", "run"]),
    ("config.toml", ["predict", "run", "test", "-o", "outputs.h5"]),
    ("config.toml", ["train", "--resume", "run"]),
    ("best.json", ["export", "run", "--to", "npz", "--step", "best"]),
    ("summary.json", ["simulate", "job.toml", "--replicas", "2", "--set", "virtual.calibration=run"]),
    ("script.json", ["run", "--resume", "run"]),
]
NESTED = "[" * 20_000 + "]" * 20_000
BOMB = ".".join("a" * 60_000)
CONTENTS = {
    "config.toml": [
        b"\xff", f"a = {NESTED}", f"{BOMB} = 1", f"[{BOMB}]", f"a = {{{BOMB} = 1}}", "data = 3",
        "[run]\nseed = {a = 1}", "[data]\nsource = 'digits'\n[model]\nlayer = 3", "#" * (1 << 21), "a = 1" + "1" * 5000,
    ],
    "best.json": [
        b"\xff", NESTED, f'{{"a": {NESTED}}}', "{", "[1]", '{"step": "x", "figure": "a", "value": 1, "epoch": 1}',
        '{"step": -1, "figure": "a", "value": 1, "epoch": 1}', " " * (1 << 21),
    ],
    "summary.json": [
        b"\xff", NESTED, f'{{"timing": {NESTED}}}', "3", '{"timing": 3}', '{"timing": {"compute": "x"}}',
        '{"timing": {"compute": 1e999, "compute_deviation": 0, "service": 0, "bandwidth": null}}',
        '{"timing": {"compute": -1, "compute_deviation": 0, "service": 0, "bandwidth": null}}',
        '{"timing": {"compute": 1, "compute_deviation": 0, "service": 0, "bandwidth": 0}}', " " * (1 << 21),
    ],
    "script.json": [b"\xff", NESTED, f'{{"a": {NESTED}}}', "[1]", '{"script": 3}', " " * (1 << 21)],
}  # fmt: skip
CASES = [
    *((name, command, make) for name, command in COMMANDS for make in IRREGULAR),
    *((name, command, content) for name, command in COMMANDS[2:] for content in CONTENTS[name]),
    *(("config.toml", COMMANDS[0][1], content) for content in CONTENTS["config.toml"][:7]),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a directory with a job and its run."""
    directory = tmp_path_factory.mktemp("trained")
    (directory / "job.toml").write_text(JOB)
    assert main(["train", str(directory / "job.toml"), "--set", f"run.dir={directory}"]) == 0
    return directory


@pytest.fixture
def received(trained, tmp_path, monkeypatch, capfd):
    """Return a copy of the run, in the working directory, and a function that runs a command there.

    It returns the exit code and the lines on stderr, once it has checked that nothing outside was touched.
    """
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    run, outside = tmp_path / "here" / "run", tmp_path / "outside"
    shutil.copytree(trained / "run", run)
    shutil.copytree(trained / "run", outside)
    (run / "script.json").unlink(missing_ok=True)
    shutil.copy(trained / "job.toml", run.parent)
    monkeypatch.chdir(run.parent)

    def command(*arguments):
        capfd.readouterr()
        watched, began = Watched(outside), time.process_time()
        try:
            code = main([str(each) for each in arguments])
            assert not watched.touched()
        finally:
            watched.close()
        assert time.process_time() - began < SOON
        return code, capfd.readouterr().err.splitlines()

    return run, outside, command


@pytest.mark.parametrize(("name", "command", "content"), CASES)
def test_files_that_are_not_as_they_should_be(received, name, command, content):
    run, outside, carry_out = received
    path = run / name
    path.unlink(missing_ok=True)
    if callable(content):
        (outside / "script.json").touch()
        content(path, outside)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    code, (line,) = carry_out(*command)
    assert code in (1, 2)
    assert line.startswith("mpidl: ")
    assert "MPIDL_DEBUG" not in line  # no internal error


@pytest.mark.parametrize("content", [*IRREGULAR[:3], "{", f'{{"a": {NESTED}}}'])
def test_a_run_goes_on_without_the_name_of_its_best(received, content):
    run, outside, carry_out = received
    (run / "best.json").unlink()
    if callable(content):
        content(run / "best.json", outside)
    else:
        (run / "best.json").write_text(content)
    code, lines = carry_out("train", "--resume", "run", "--set", "run.epochs=2")
    assert code == 0
    (warning,) = (line for line in lines if "best.json" in line)
    assert warning.startswith("mpidl: run/best.json: can't be read: ")
    assert warning.endswith("; continuing without the best checkpoint so far")
    assert '"step"' in (run / "best.json").read_text()


def test_lines_without_end(received):
    run, _, carry_out = received
    with (run / "metrics.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    code, (line,) = carry_out("train", "--resume", "run", "--set", "run.epochs=2")
    assert (code, line) == (2, "mpidl: run.dir: can't write in run: metrics.jsonl: no line in its last 1 MiB")


def test_an_incomplete_line_is_removed_from_a_long_file(received):
    run, _, carry_out = received
    before = b"{}\n" * LONGEST
    (run / "metrics.jsonl").write_bytes(before + b'{"time": ')
    assert carry_out("train", "--resume", "run", "--set", "run.epochs=2")[0] == 0
    after = (run / "metrics.jsonl").read_bytes()
    assert after.startswith(before + b'{"')
    assert not after.startswith(before + b'{"time": {')


def npy(path, header, length=None, version=2):
    """Write an archive with an array ``a`` whose header is as given."""
    length = len(header) if length is None else length
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("a.npy", b"\x93NUMPY" + bytes([version, 0]) + length.to_bytes(4, "little") + header)


def described(shape, dtype="<f4"):
    return f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()


@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b" " * (1 << 26), None),
        (described((3,)), 4 << 29),
        (described((10**12,)), None),
        (described((10**12, 10**12)), None),
        (described((-3,)), None),
        (b"(" * 5000 + b"\n", None),
    ],
)
def test_archives_that_are_larger_than_they_look(tmp_path, header, length):
    npy(tmp_path / "model.npz", header, length)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=rf"^{tmp_path}/model\.npz: not a readable \.npz file \([^\n]+\)$"):
            open_file(tmp_path / "model.npz")
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_an_array_of_any_size_that_is_no_archive(tmp_path):
    np.save(tmp_path / "model.npy", np.zeros(3))
    content = (tmp_path / "model.npy").read_bytes().replace(b"(3,), }         ", b"(3000000000,), }")
    (tmp_path / "model.npz").write_bytes(content)
    with pytest.raises(UsageError, match="not a readable"):
        open_file(tmp_path / "model.npz")
