"""Runs whose losses are not finite, or whose parameters don't change: one line says so."""

import dataclasses
import json
import re

import numpy as np
import pytest

from mpidl.config import from_dict
from mpidl.errors import NOT_FINITE, MpidlError
from mpidl.job.build import build
from mpidl.parameters import Range
from mpidl.runs.one_process import OneProcess
from mpidl.runs.simulate import simulate
from mpidl.storage.checkpoint import Checkpoint


def configuration(path, rate, algorithm="downpour", **run):
    return from_dict(
        {
            "run": {"dir": str(path), "epochs": 3, **run},
            "data": {"source": "digits"},
            "model": {"layer": [{"type": "dense", "units": 8}, {"type": "dense", "units": 10}]},
            "algorithm": {"name": algorithm},
            "server": {"rule": "sgd", "rate": rate},
            "virtual": {"compute": 0.01},
            "device": {"kind": "cpu"},
        }
    )


def alone(config):
    return OneProcess(build(config)).run()


def on_four(config):
    return simulate(config, 4)


@pytest.mark.parametrize("train", [alone, on_four])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_run_that_diverges_ends_with_one_line(tmp_path, train):
    with pytest.raises(MpidlError, match=r"^worker \d: the loss is (nan|inf) in portion \d+: ") as error:
        train(configuration(tmp_path, 1e10))
    assert str(error.value).endswith(NOT_FINITE)
    directory = tmp_path / ("run" if train is alone else "virtual/run")
    assert [path.name for path in (directory / "checkpoints").iterdir()] == ["0"]
    assert not (directory / "summary.json").exists()
    last = json.loads((directory / "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "failure"
    assert f"{last['role']}: {last['cause']}" == str(error.value)


@pytest.mark.parametrize("train", [alone, on_four])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_run_may_go_on(tmp_path, train):
    summary = train(configuration(tmp_path, 1e10, terminate_on_nan=False))
    assert summary["epochs"] == 3


@pytest.mark.parametrize("train", [alone, on_four])
@pytest.mark.parametrize("algorithm", ["downpour", "sync", "hogwild"])
def test_parameters_that_did_not_change_are_said(tmp_path, capfd, train, algorithm):
    """A rate that rounds to 0 in float32."""
    summary = train(configuration(tmp_path, 1e-60, algorithm))
    lines = [line for line in capfd.readouterr().err.splitlines() if re.match("mpidl: (?!durations)", line)]
    text = f"mpidl: no parameter has changed in {summary['pushes']} pushes: is the rate 0, or every gradient?"
    assert lines == [text]


def test_what_a_run_resumes_from_is_finite(tmp_path):
    """A checkpoint is due after each batch; the second batch makes the parameters infinite."""
    config = configuration(tmp_path, 1e10)
    config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, every=1e-9))
    with pytest.raises(MpidlError, match=r"(NaN or infinite|is (nan|inf))"):
        alone(config)
    newest = max((tmp_path / "run" / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    parameters = Checkpoint(newest).read("parameters", Range(0, 610))
    assert np.isfinite(parameters).all()
