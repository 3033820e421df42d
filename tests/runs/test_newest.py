"""Which run of a name is evaluated, and what its accuracy is called."""

import json

import h5py
import numpy as np
import pytest

from mpidl.cli import main

JOB = """
[run]
dir = "{directory}"
epochs = 2
[data]
source = "hdf5"
path = "{directory}/labels.h5"
[model]
loss = "one_vs_all_logistic"
[[model.layer]]
type = "dense"
units = 3
[device]
kind = "cpu"
"""


@pytest.fixture
def job(tmp_path):
    """A job of three labels for each sample, of which any may be 1."""
    random = np.random.default_rng(3)
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        for split in ("train", "test"):
            inputs = random.normal(size=(64, 3)).astype(np.float32)
            file[f"{split}/x"], file[f"{split}/y"] = inputs, (inputs > 0).astype(np.float32)
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(directory=tmp_path))
    return path


def test_evaluate_takes_the_run_it_is_given_or_on_request_the_newest_of_its_name(job, tmp_path, capfd):
    for seed in range(2):
        assert main(["train", str(job), "--set", f"run.seed={seed}", "--json"]) == 0
    summaries = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    (tmp_path / "job-3").mkdir()  # a run that never saved anything
    (tmp_path / "job-x").mkdir()
    for arguments, number in (([], 0), (["--newest"], 1)):
        assert main(["evaluate", str(tmp_path / "job"), "--json", *arguments]) == 0
        out, err = capfd.readouterr()
        result = json.loads(out)
        assert err == ""
        directory = tmp_path / ("job", "job-2")[number]
        assert result["run_dir"] == str(directory) == summaries[number]["run_dir"]
        assert result["test_loss"] == pytest.approx(summaries[number]["test_loss"], rel=1e-5)


def test_the_accuracy_of_several_labels_is_named(job, tmp_path, capfd):
    assert main(["train", str(job)]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("test exact match 0.")
    assert "exact match 0." in err.splitlines()[-2]
    assert json.loads((tmp_path / "job" / "summary.json").read_text())["accuracy_name"] == "exact match"
    assert main(["evaluate", str(tmp_path / "job")]) == 0
    assert capfd.readouterr().out.startswith("test exact match 0.")


def test_a_checkpoint_is_evaluated_by_its_step_or_as_the_best(job, tmp_path, capfd):
    assert main(["train", str(job), "--set", "data.validation=0.25", "--set", "run.metrics=['f1']", "--json"]) == 0
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
