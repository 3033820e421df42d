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


def test_evaluate_takes_the_newest_run_of_a_name_and_says_so(job, tmp_path, capfd):
    for seed in range(2):
        assert main(["train", str(job), "--set", f"run.seed={seed}", "--json"]) == 0
    summaries = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    (tmp_path / "job-3").mkdir()  # a run that never saved anything
    (tmp_path / "job-x").mkdir()
    for arguments, number in (([], 1), (["--exact"], 0)):
        assert main(["evaluate", str(tmp_path / "job"), "--json", *arguments]) == 0
        out, err = capfd.readouterr()
        result = json.loads(out)
        directory = tmp_path / ("job", "job-2")[number]
        assert result["run_dir"] == str(directory) == summaries[number]["run_dir"]
        assert result["test_loss"] == pytest.approx(summaries[number]["test_loss"], rel=1e-5)
        said = f"mpidl: {directory} is the newest run of that name; --exact takes {tmp_path / 'job'} itself\n"
        assert err == (said if number else "")


def test_the_accuracy_of_several_labels_is_named(job, tmp_path, capfd):
    assert main(["train", str(job)]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("test exact match 0.")
    assert "exact match 0." in err.splitlines()[-1]
    assert json.loads((tmp_path / "job" / "summary.json").read_text())["accuracy_name"] == "exact match"
    assert main(["evaluate", str(tmp_path / "job")]) == 0
    assert capfd.readouterr().out.startswith("test exact match 0.")
