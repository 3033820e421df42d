"""The files of a run, in each state that it may be in."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import mpidl
from mpidl.history import Run
from mpidl.storage.lock import Lock, is_locked

#: Locks a directory, in another process.
LOCK = "import sys; from pathlib import Path; from mpidl.storage.lock import Lock; lock = Lock(Path(sys.argv[1]))"
CONFIG = """
[run]
name = "fashion"
seed = 3
[data]
source = "digits"
batch = 64
[data.augment]
rotate = 1.0
[algorithm]
name = "downpour"
n_fetch = 1
[server]
rule = "adagrad"
rate = 0.5
"""


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "fashion"
    directory.mkdir()
    (directory / "config.toml").write_text(CONFIG)
    return directory


def write(run, name, *records):
    (run / name).write_text("".join(json.dumps(each) + "\n" for each in records))


def test_configuration_and_what_differs_from_defaults(run):
    found = mpidl.open(run)
    assert isinstance(found, Run)
    assert (found.name, found.directory) == ("fashion", run)
    assert found.config["run"]["seed"] == 3
    assert found.changed == {
        "run.name": ("fashion", "run"),
        "run.seed": (3, 0),
        "data.source": ("digits", None),
        "data.batch": (64, 128),
        "data.augment.rotate": (1.0, 0.0),
        "server.rate": (0.5, 0.01),
    }


@pytest.mark.parametrize(
    "section", ["x = 1", "[algorithm]\nname = 'no such'", "[model]\nlayer = [{type = 'dense'}]", ""]
)
def test_any_configuration(run, section):
    (run / "config.toml").write_text(section)
    assert isinstance(mpidl.open(run).changed, dict)


def test_what_is_no_run(run, tmp_path):
    (run / "config.toml").rename(tmp_path / "config")
    for place in (run, tmp_path / "none"):
        with pytest.raises(mpidl.UsageError, match="expected the directory of a run"):
            mpidl.open(place)
    (run / "config.toml").write_text("[")
    with pytest.raises(mpidl.UsageError, match=r"config\.toml: "):
        _ = mpidl.open(str(run)).config


def test_states_of_a_run(run):
    assert mpidl.open(run).state == "killed"
    write(run, "events.jsonl", {"event": "checkpoint"}, {"event": "failure", "cause": "NaN"})
    assert mpidl.open(run).state == "failed"
    # One that the run has survived.
    write(run, "events.jsonl", {"event": "failure", "cause": None}, {"event": "failure", "signal": "SIGKILL"})
    assert mpidl.open(run).state == "killed"
    write(run, "summary.json", {"interrupted": True})
    assert mpidl.open(run).state == "stopped"
    write(run, "summary.json", {"interrupted": False, "samples": 1})
    assert mpidl.open(run).state == "finished"
    assert mpidl.open(run).summary == {"interrupted": False, "samples": 1}


def test_a_run_that_is_running(run):
    other = subprocess.Popen(
        [sys.executable, "-c", f"{LOCK}; print(); input()", str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        other.stdout.readline()
        assert mpidl.open(run).state == "running"
    finally:
        other.communicate()
    assert mpidl.open(run).state == "killed"


@pytest.mark.parametrize(("age", "state"), [(1, "running"), (600, "killed"), (None, "killed")])
def test_a_lock_that_others_may_not_read(run, monkeypatch, age, state):
    monkeypatch.setattr("mpidl.history.run.is_locked", lambda run: None)
    if age is not None:
        write(run, "status.json", {"time": time.time() - age})
    assert mpidl.open(run).state == state


def test_a_look_at_its_own_run_keeps_the_lock(run):
    lock = Lock(run)
    assert is_locked(run)
    refused = subprocess.run([sys.executable, "-c", LOCK, str(run)], capture_output=True, text=True)
    assert f"in use by process {os.getpid()}" in refused.stderr
    lock.close()
    assert not is_locked(run)


def test_files_that_are_not_there_or_no_objects(run):
    found = mpidl.open(run)
    assert (found.summary, found.status, found.metrics.rows, found.events.rows) == (None, None, 0, 0)
    for content in ("[1]", "{", "[" * 9999, "\0\0"):
        (run / "summary.json").write_text(content)
        assert mpidl.open(run).summary is None


def test_a_notebook_shows_figures_and_curve(run):
    assert "<svg" not in mpidl.open(run)._repr_html_()
    losses = [{"samples": n, "train_loss": 1 / (n + 1), "test_accuracy": None} for n in range(2000)]
    write(run, "metrics.jsonl", *losses, {"samples": 2000, "train_loss": None, "test_accuracy": 0.875})
    shown = mpidl.open(run)._repr_html_()
    assert "<b>fashion</b>: killed" in shown
    assert "<th>test_accuracy</th><td>0.875</td>" in shown
    assert shown.count("<polyline") == 1
    assert len(shown) < 10_000


@pytest.mark.parametrize("values", [[1e308, -1e308], [5, 5], [1], [float("nan")], [10**400], ["x"], [[1]], [True]])
def test_odd_curves(run, values):
    write(run, "metrics.jsonl", *({"samples": n, "train_loss": value} for n, value in enumerate(values)))
    shown = mpidl.open(run)._repr_html_()
    assert "nan" not in shown


def test_hostile_names_are_text(run):
    hostile = run.with_name("<script>alert(1)<&\x1b[31m" + "x" * 100)
    run.rename(hostile)
    write(hostile, "metrics.jsonl", {"samples": 1, "<b onload='x'>_loss": 1.0})
    shown = mpidl.open(hostile)._repr_html_()
    assert not [each for each in ("<script", "<b o", "\x1b") if each in shown]
    assert "&lt;script&gt;" in shown


def test_a_real_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = mpidl.Network([mpidl.Dense(10)], (8, 8))
    states = []
    mpidl.train(
        model,
        mpidl.Digits(),
        epochs=1,
        name="real",
        callbacks=[lambda *_: states.append(mpidl.open("runs/real").state)],
    )
    found = mpidl.open(Path("runs") / "real")
    assert states[0] == "running"
    assert found.state == "finished"
    assert found.metrics["samples"][-1] == found.summary["samples"]
    assert found.metrics["staleness.mean"].dtype == np.float64
    assert "checkpoint" in found.events["event"]
    assert "data.batch" not in found.changed
    (rank,) = found.status["ranks"]
    assert (rank["role"], rank["state"], rank["samples"]) == ("worker 0", "done", found.summary["samples"])
    assert rank["memory"] > 1 << 24
    assert found.status["record"]["samples"] == found.summary["samples"]
