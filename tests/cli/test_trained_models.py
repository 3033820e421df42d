"""`mpidl export` and `mpidl predict` on the command line."""

import json

import h5py
import numpy as np
import pytest
import tomli_w

from mpidl.cli import main

CONFIG = {
    "run": {"steps": 3, "name": "job"},
    "data": {"source": "digits"},
    "model": {"layer": [{"type": "dense", "units": 10}]},
    "device": {"kind": "cpu"},
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Train in an empty directory, and return the directory of the run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(tomli_w.dumps(CONFIG))
    assert main(["train", "job.toml"]) == 0
    capsys.readouterr()
    return tmp_path / "runs" / "job"


def test_what_was_written_is_told(run, capsys):
    assert main(["export", "runs/job", "--to", "npz"]) == 0
    size = (run / "model.npz").stat().st_size
    assert capsys.readouterr().out == f"runs/job/model.npz: 2 tensors, {size / 1000:.2f} kB\nruns/job, step 3\n"
    assert main(["predict", "runs/job", "test", "-o", "out.h5", "--step", "0"]) == 0
    assert capsys.readouterr().out == "out.h5: outputs (360, 10)\nruns/job, step 0\n"
    for arguments in (["export", "runs/job", "--to", "npz"], ["predict", "runs/job", "test", "-o", "out.h5"]):
        assert main([*arguments, "--json", "--force"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == 3


def test_the_newest_run_of_a_name_is_taken_on_request(run, capsys):
    assert main(["train", "job.toml", "--set", "run.steps=2"]) == 0
    capsys.readouterr()
    for arguments, step in ((["runs/job"], 3), (["runs/job", "--newest"], 2)):
        assert main(["export", *arguments, "--to", "npz", "-o", "out.npz", "--json", "--force"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == step
        assert main(["predict", *arguments, "test", "-o", "out.h5", "--json", "--force"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == step


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["export", "runs/job", "--to", "nzp"], "--to: unknown format 'nzp', did you mean 'npz'?"),
        (["export", "runs/job", "--to", "npz", "--step", "x"], "--step: expected a number or 'best', found 'x'"),
        (
            ["export", "runs/job", "--to", "npz", "--step", "7"],
            "runs/job: no checkpoint of step 7, there are those of 0, 3",
        ),
        (["predict", "runs/job", "tests", "-o", "out.h5"], "tests: expected a file .npy, .npz, .h5, .hdf5, or 'train'"),
        (["predict", "runs/job", "test", "-o", "out.h5", "-n", "0"], "-n: expected int >= 1, found 0"),
        (["predict", "runs/job", "test", "-o", "a/out.h5"], "a/out.h5: can't be written (no such directory)"),
        (["predict", "absent", "test", "-o", "out.h5"], "absent: no directory, expected the directory of a run,"),
    ],
)  # fmt: skip
def test_what_a_user_did_wrong_is_one_line(run, capsys, arguments, line):
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"mpidl: {line}")
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_ranks_that_the_command_starts_itself(run, mpidl, capsys):
    inputs = np.random.default_rng(3).random((600, 8, 8))
    np.save("data.npy", inputs)
    assert main(["predict", "runs/job", "data.npy", "-o", "one.h5"]) == 0
    ended = mpidl("predict", "runs/job", "data.npy", "-o", "three.h5", "-n", "3", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["samples"] == 600
    with h5py.File("one.h5") as one, h5py.File("three.h5") as three:
        np.testing.assert_array_equal(one["outputs"], three["outputs"])
    ended = mpidl("predict", "runs/job", "data.npy", "-o", "three.h5", "-n", "3")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("mpidl: three.h5: exists already, expected --force to replace it\n") == 1
