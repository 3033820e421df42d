"""`mpidl evaluate`, `mpidl export` and `mpidl predict` on the command line."""

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
    (run.parent / "job-3").mkdir()  # a run that never saved anything
    (run.parent / "job-x").mkdir()
    others = (["evaluate"], ["export", "--to", "npz", "-o", "out.npz", "--force"])
    for arguments, directory, step in ((["runs/job"], "runs/job", 3), (["runs/job", "--newest"], "runs/job-2", 2)):
        summary = json.loads((run.parents[1] / directory / "summary.json").read_text())
        for command, *more in (*others, ["predict", "test", "-o", "out.h5", "--force"]):
            capsys.readouterr()
            assert main([command, *arguments, *more, "--json"]) == 0
            told = capsys.readouterr()
            found = json.loads(told.out)
            assert (found["run_dir"], found["step"], told.err) == (directory, step, "")
            if command == "evaluate":
                assert found["test_loss"] == pytest.approx(summary["test_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["export", "runs/job", "--to", "npz", "--step", "x"], "--step: expected a number or 'best', found 'x'"),
        (["predict", "runs/job", "tests", "-o", "out.h5"], "tests: expected a file .npy, .npz, .h5, .hdf5, or 'train'"),
        (["predict", "runs/job", "test", "-o", "out.h5", "-n", "0"], "-n: expected int >= 1, found 0"),
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


@pytest.fixture
def labels(tmp_path):
    """A job of three labels for each sample, of which any may be 1."""
    random = np.random.default_rng(3)
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        for split in ("train", "test"):
            inputs = random.normal(size=(64, 3)).astype(np.float32)
            file[f"{split}/x"], file[f"{split}/y"] = inputs, (inputs > 0).astype(np.float32)
    model = {"loss": "one_vs_all_logistic", "layer": [{"type": "dense", "units": 3}]}
    data = {"source": "hdf5", "path": str(tmp_path / "labels.h5")}
    path = tmp_path / "job.toml"
    config = {"run": {"epochs": 2, "dir": str(tmp_path)}, "data": data, "model": model}
    path.write_text(tomli_w.dumps(CONFIG | config))
    return path


def test_the_accuracy_of_several_labels_is_named(labels, tmp_path, capfd):
    assert main(["train", str(labels)]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("test exact match 0.")
    assert "exact match 0." in err.splitlines()[-2]
    assert json.loads((tmp_path / "job" / "summary.json").read_text())["accuracy_name"] == "exact match"
    assert main(["evaluate", str(tmp_path / "job")]) == 0
    assert capfd.readouterr().out.startswith("test exact match 0.")


def test_a_checkpoint_is_evaluated_by_its_step_or_as_the_best(labels, tmp_path, capfd):
    assert main(["train", str(labels), "--set", "data.validation=0.25", "--set", "run.metrics=['f1']", "--json"]) == 0
    summary = json.loads(capfd.readouterr().out)
    found = {}
    for step in ("0", str(summary["best_step"]), "best"):
        assert main(["evaluate", str(tmp_path / "job"), "--step", step, "--json"]) == 0
        found[step] = json.loads(capfd.readouterr().out)
    assert found["best"] == found[str(summary["best_step"])]
    assert found["best"]["validation_loss"] == pytest.approx(summary["best_validation_loss"], rel=1e-5)
    assert found["best"]["validation_f1"] > 0
    assert found["0"]["step"] == 0
    for step, line in (
        ("7", "no checkpoint of step 7, there are those of 0, "),
        ("last", "expected a number or 'best'"),
    ):
        assert main(["evaluate", str(tmp_path / "job"), "--step", step]) == 2
        assert line in capfd.readouterr().err
