"""A worker that stands still in the middle of Sandblaster's batches: a job of its own for each test."""

import json
import os
import signal
import time

import h5py
import numpy as np
import pytest
from jobs_apart import process_of_rank, trains, wait_for

#: A linear objective: its gradient is the same whole numbers everywhere, and L-BFGS goes on for ever.
SLOPE = """
import time, os
import numpy as np

class Slope:
    def __init__(self):
        self.parameters = np.zeros(13)

    def loss_and_gradient(self, batch):
        time.sleep(float(os.environ.get("SLOPE_SECONDS", 0)))
        gradient = np.arange(1.0, 14) * np.sum(batch.inputs[:, 0] + 1)
        return float(self.parameters @ gradient), gradient

def make(dataset, seed):
    return Slope()
"""


def accrued(directory, name):
    """Return the gradient of a run's last checkpoint."""
    checkpoints = directory / "runs" / name / "checkpoints"
    newest = max(checkpoints.iterdir(), key=lambda path: int(path.name))
    with h5py.File(newest / "index.h5") as index:
        return index["rule/gradient/parameters"][...]


@pytest.mark.parametrize("servers", [1, 2])
def test_what_is_accrued_is_the_same_with_a_stopped_worker(job, start, tmp_path, servers):
    (tmp_path / "slope.py").write_text(SLOPE)
    settings = ["--set=algorithm.name=sandblaster", "--set=algorithm.unit=1", "--set=model.factory=slope:make"]
    alone = start("train", job, *settings, "--set=run.name=alone")
    assert alone.wait(60) == 0
    process = start(
        "train", job, "-n", 4 + servers - 1, *settings, f"--set=topology.servers={servers}", "--set=run.epochs=30",
        SLOPE_SECONDS="0.002",
    )  # fmt: skip
    wait_for(lambda: trains(tmp_path))
    worker = process_of_rank(2 + servers, tmp_path)
    for _ in range(3):
        time.sleep(0.3)
        os.kill(worker, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(worker, signal.SIGCONT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    np.testing.assert_array_equal(accrued(tmp_path, "tally"), accrued(tmp_path, "alone"))
    events = map(json.loads, (tmp_path / "runs" / "tally" / "events.jsonl").read_text().splitlines())
    assert sum(event["won"] for event in events if event["event"] == "backups") > 0
