"""On ranks, a loss that is not finite ends the whole job with one line, and parameters that did not change are said."""

import json

import pytest

JOB = """
[run]
epochs = 1000
[data]
source = "digits"
[[model.layer]]
type = "dense"
units = 8
[[model.layer]]
type = "dense"
units = 10
[device]
kind = "cpu"
[server]
rule = "sgd"
"""


@pytest.fixture
def train(mpidl, tmp_path):
    """Trains on three ranks with settings; returns what ended, and the lines of mpidl itself."""
    (tmp_path / "job.toml").write_text(JOB)

    def run(*settings):
        words = [word for setting in settings for word in ("--set", setting)]
        ended = mpidl("train", "job.toml", "-n", 3, *words)
        lines = [line for line in ended.stderr.splitlines() if "running as root" not in line]
        return ended, lines

    return run


@pytest.mark.parametrize("algorithm", ["downpour", pytest.param("sync", marks=pytest.mark.long)])
def test_a_job_that_diverges_ends_with_one_line(train, tmp_path, algorithm):
    ended, lines = train("server.rate=1e10", f"algorithm.name={algorithm}", "run.report=1000")
    assert ended.returncode == 1
    assert ended.stdout == ""
    title, size, placement, *others, failure = lines
    assert size.startswith("3 ranks on 1 host, ")
    assert ": coordinator, " in placement
    assert title.endswith("runs/job: 610 parameters (2.44 kB)")
    assert all("epoch" in line for line in others if "death ends the run" not in line), ended.stderr
    begin, _, rest = failure.partition(" failed: the loss is ")
    assert rest.partition(" ")[0] in ("nan", "inf")
    assert "run.terminate_on_nan = false" in rest
    last = json.loads((tmp_path / "runs" / "job" / "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "failure"
    assert begin == f"mpidl: rank {last['rank']} ({last['role']})"
    assert last["role"].startswith("worker ")


def test_parameters_that_did_not_change_are_said(train):
    ended, lines = train("server.rate=1e-60", "run.epochs=2")
    assert ended.returncode == 0
    assert lines[-1] == "mpidl: no parameter has changed in 24 pushes: is the rate 0, or every gradient?"
