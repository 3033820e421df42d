"""A worker that stands still in the middle of a batch: a job of its own for each test."""

import json
import os
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs_apart import ended, newest, process_of_rank, wait_for

#: A linear objective: its gradient is the same whole numbers everywhere, and L-BFGS goes on for ever. One rank stops
#: itself in the middle of a unit, twice.
SLOPE = """
import os, signal, time
import numpy as np

class Slope:
    def __init__(self):
        self.parameters = np.zeros(13)
        self.gradients = 0

    def loss_and_gradient(self, batch):
        time.sleep(float(os.environ.get("SLOPE_SECONDS", 0)))
        self.gradients += 1
        stops = os.environ.get("OMPI_COMM_WORLD_RANK") == os.environ.get("SLOPE_STOPS", "none")
        if stops and self.gradients in (5, 14):
            os.kill(os.getpid(), signal.SIGSTOP)
        gradient = np.arange(1.0, 14) * np.sum(batch.inputs[:, 0] + 1)
        return float(self.parameters @ gradient), gradient

def make(dataset, seed):
    return Slope()
"""
STOPS = 2


def accrued(directory, name):
    """Return the gradient of a run's last checkpoint."""
    with h5py.File(newest(directory / "runs" / name) / "index.h5") as index:
        return index["rule/gradient/parameters"][...]


def won(directory):
    """Return how many copies of units came before the first ones."""
    path = directory / "runs" / "tally" / "events.jsonl"
    events = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return sum(event["won"] for event in events if event["event"] == "backups")


def stands_still(process):
    """Tell whether a process is stopped."""
    return (Path("/proc") / str(process) / "stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_what_is_accrued_is_the_same_with_a_stopped_worker(job, start, tmp_path, servers):
    (tmp_path / "slope.py").write_text(SLOPE)
    settings = [
        "--set=algorithm.name=sandblaster", "--set=server.rule=default", "--set=algorithm.unit=1",
        "--set=model.factory=slope:make",
    ]  # fmt: skip
    alone = start("train", job, *settings, "--set=run.name=alone")
    assert alone.wait(300) == 0
    rank = 2 + servers
    process = start(
        "train", job, "-n", 4 + servers - 1, *settings, f"--set=topology.servers={servers}", "--set=run.epochs=90",
        SLOPE_SECONDS="0.002", SLOPE_STOPS=str(rank),
    )  # fmt: skip
    for stop in range(STOPS):
        wait_for(lambda stop=stop: won(tmp_path) > stop)
        worker = process_of_rank(rank, tmp_path)
        wait_for(lambda worker=worker: stands_still(worker))
        os.kill(worker, signal.SIGCONT)
    ended(process)
    np.testing.assert_array_equal(accrued(tmp_path, "tally"), accrued(tmp_path, "alone"))


#: A model that hangs on one rank, in a batch after many, and its idea of a long time.
HANGS = """
import itertools, time
from tally import Tally
from mpidl.launch.environment import world
from mpidl.survival import watch

watch.SECONDS = 1.0

class Hangs(Tally):
    def loss_and_gradient(self, batch):
        while world().rank == 3 and self.calls == 30:
            time.sleep(0.1)
        return super().loss_and_gradient(batch)

def make(dataset, seed):
    return Hangs()
"""


@pytest.mark.long
def test_a_worker_that_hangs_is_killed_and_taken_over(job, start, tmp_path):
    (tmp_path / "hangs.py").write_text(HANGS)
    settings = ["--set=model.factory=hangs:make", "--set=run.epochs=20", "--json"]
    process = start("train", job, "-n", 4, *settings, TALLY_SECONDS="0.005")
    output, errors = ended(process)
    assert errors.count("rank 3 (worker 1) hangs in a batch (its longest so far took 0.0") == 1, errors
    assert "rank 3 (worker 1) goes on, taken over by the process of rank 2" in errors
    summary = json.loads(output.splitlines()[-1])
    assert (summary["failures"], summary["recoveries"], summary["epochs"]) == (1, 1, 20.0), errors
