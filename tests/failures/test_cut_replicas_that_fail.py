"""Jobs whose replicas have several ranks, one of which fails, is killed or stopped: a job of its own for each test."""

import json
import os
import signal
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs_apart import ended, newest, process_of_rank, summary_of, wait_for

SAMPLES, UNITS, EPOCHS = 60, 13, 5
#: Data of which a rank's samples can't be read once training has begun.
FAILING = """
import os
import numpy as np
import mpidl

class Data:
    def __len__(self):
        return 60

    def __getitem__(self, index):
        if os.environ.get("OMPI_COMM_WORLD_RANK") == "3" and os.path.exists("runs/counting/checkpoints/0"):
            raise RuntimeError("out of luck")
        return np.ones(60), np.zeros(13)

def make():
    return mpidl.Indexed(Data(), Data())
"""


@pytest.fixture
def counting(tmp_path):
    """A job of a network that counts: its configuration's path.

    Sample i is the unit vector i and all logits are huge, so that each time that sample i is applied, its row of the
    weights becomes less by exactly 1.
    """
    with h5py.File(tmp_path / "units.h5", "w") as file:
        for split in ("train", "test"):
            file[f"{split}/x"], file[f"{split}/y"] = np.eye(SAMPLES), np.zeros((SAMPLES, UNITS))
    first = {"0-dense/weight": np.zeros((SAMPLES, UNITS)), "0-dense/bias": np.full(UNITS, 2.0**50)}
    np.savez(tmp_path / "first.npz", **first)
    path = tmp_path / "counting.toml"
    path.write_text(
        f"""
        [run]
        epochs = {EPOCHS}
        [data]
        source = "hdf5"
        path = "units.h5"
        batch = 4
        portion = 12
        [model]
        loss = "one_vs_all_logistic"
        dtype = "float64"
        initial = "first.npz"
        [[model.layer]]
        type = "dense"
        units = {UNITS}
        cut = "units"
        [server]
        rule = "sgd"
        rate = 4.0
        [topology]
        servers = 2
        partitions = 2
        [checkpoint]
        every = 0.2
        """
    )
    return path


def counts(directory):
    """Return how often each sample was applied to each unit, by the last checkpoint."""
    with h5py.File(newest(directory / "runs" / "counting") / "index.h5") as index:
        return -index["parameters/0-dense/weight"][...]


def trains(directory, step=0):
    checkpoints = directory / "runs" / "counting" / "checkpoints"
    return checkpoints.exists() and any(
        path.name.isdecimal() and int(path.name) >= step for path in checkpoints.iterdir()
    )


@pytest.mark.parametrize(
    ("way", "settings", "servers", "partitions"),
    [
        ("signal", ["algorithm.n_push=3"], 2, 1),
        pytest.param("kill", ["algorithm.name=ssp"], 1, 3, marks=pytest.mark.long),
    ],
)
def test_a_run_goes_on_with_other_partitions_and_uses_every_sample_exactly_once(
    counting, start, tmp_path, way, settings, servers, partitions
):
    """With as many replicas as before, these go on with the gradients that they had accrued."""
    slow = ("--set=debug.gradient_seconds=0.02", *(f"--set={each}" for each in settings))
    process = start("train", counting, "-n", 7, *slow, "--json")
    wait_for(lambda: trains(tmp_path, 5))
    if way == "kill":
        os.kill(process_of_rank(6, tmp_path), signal.SIGKILL)
        _, errors = ended(process, 1)
        line = "mpidl: rank 6 (worker 1, partition 1 of 2) was killed by SIGKILL, which ends the job: replicas are cut"
        assert errors.splitlines()[-1] == line
    else:
        process.send_signal(signal.SIGTERM)
        output, errors = ended(process, 75)
        assert 0 < json.loads(output.splitlines()[-1])["samples"] < EPOCHS * SAMPLES
    rest = (f"--set=topology.servers={servers}", f"--set=topology.partitions={partitions}", "--json")
    summary = summary_of(start("train", "--resume", "runs/counting", "-n", 5, *rest))
    replicas = (4 - servers) // partitions
    assert (summary["partitions"], summary["replicas"]) == (partitions, replicas)
    assert summary["samples"] == EPOCHS * SAMPLES
    assert np.array_equal(counts(tmp_path), np.full((SAMPLES, UNITS), EPOCHS))


def test_a_partition_that_fails_ends_the_job_with_one_line(counting, start, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    text = counting.read_text().replace('source = "hdf5"', 'factory = "failing:make"').replace('path = "units.h5"', "")
    counting.write_text(text)
    process = start("train", counting, "-n", 5, "--set=run.epochs=100000")
    wait_for(lambda: trains(tmp_path))
    began = time.monotonic()
    _, errors = process.communicate(timeout=300)
    assert time.monotonic() - began < 60  # 10 on a quiet machine
    assert process.returncode == 1
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if "failed" in line]
    assert line.startswith("mpidl: rank 3 (worker 0, partition 0 of 2) failed: "), errors
    assert "out of luck" in line
    events = map(json.loads, Path(tmp_path / "runs/counting/events.jsonl").read_text().splitlines())
    assert [event["role"] for event in events if event["event"] == "failure"] == ["worker 0, partition 0 of 2"]
