"""The trainings of a script whose job starts again: each continues the run that it had begun, and no other's."""

from pathlib import Path

import numpy as np
import pytest

import mpidl
from mpidl.errors import UsageError
from mpidl.launch.script import UserScript


@pytest.fixture
def starts(monkeypatch):
    """Makes this process that of a script in a job, from the script's beginning."""

    def start(job="job"):
        script = UserScript(Path("script.py"), [], job)
        monkeypatch.setattr("mpidl.launch.script.current", lambda: script)

    return start


@pytest.fixture
def train(tmp_path):
    """Trains a network for a step; returns the run's name and the parameters."""

    def run(first=0, rate=0.1, **options):
        inputs, classes = np.arange(80, dtype=np.float32).reshape(20, 4), np.arange(20) // 2 % 2
        network = mpidl.Network([mpidl.Dense(2)], input_shape=(4,))
        data = mpidl.Arrays((inputs[first::2], classes[first::2]), (inputs, classes))
        options = {"rule": mpidl.Sgd(rate), "steps": 1, "dir": tmp_path} | options
        summary = mpidl.train(network, data, **options)
        return Path(summary["run_dir"]).name, summary["samples"], network.parameters.tolist()

    return run


def test_trainings_of_one_name_find_their_own_runs(starts, train):
    starts()
    before = [train(), train(first=1), train(name="run-2"), train()]
    assert [name for name, *_ in before] == ["run", "run-2", "run-2-2", "run-3"]
    starts("another")
    assert train()[0] == "run-4"
    starts()
    assert [train(), train(first=1), train(name="run-2"), train()] == before
    assert train()[0] == "run-5"


def test_a_longer_training_goes_on(starts, train):
    starts()
    assert train()[:2] == ("run", 10)
    starts()
    assert train(steps=3)[:2] == ("run", 30)


def test_a_training_with_a_run_to_resume_takes_that(starts, train):
    starts()
    train()
    starts("another")
    assert train(resume=True, steps=2)[:2] == ("run", 20)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"rate": 0.2}, "server.rate: 0.2, but {}, where this training of the script would continue, has 0.1: "),
        ({"algorithm": mpidl.Sync(), "rate": 0.1}, "algorithm.name: sync, but {}, where"),
        ({"first": 1}, "data: checksum of the training samples: "),
    ],
)  # fmt: skip
def test_a_finished_run_of_another_training_is_one_line(starts, train, tmp_path, changes, line):
    starts()
    train()
    starts()
    with pytest.raises(UsageError, match=f"^{line.format(tmp_path / 'run')}"):
        train(**changes)
