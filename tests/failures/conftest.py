"""Jobs that tests of failures start: each an mpirun of its own."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
from jobs_apart import EPOCHS, SAMPLES

from mpidl.launch.command import command

#: A model whose gradients are integers, so that its parameters count what was applied; it takes its time.
TALLY = """
import os, time
import numpy as np

class Tally:
    def __init__(self):
        self.parameters = np.zeros(13)
        self.calls = 0

    def loss_and_gradient(self, batch):
        time.sleep(float(os.environ.get("TALLY_SECONDS", 0)))
        self.calls += 1
        if os.environ.get("OMPI_COMM_WORLD_RANK") in os.environ.get("TALLY_FAILS", "").split(",") and self.calls > 3:
            raise RuntimeError("out of luck")
        if os.environ.get("TALLY_FAILS_EVERYWHERE") == "gradient":
            raise RuntimeError("no luck at all")
        return 0.0, (1.0 + np.arange(13)) * np.sum(batch.inputs[:, 0] + 1)

def make(dataset, seed):
    if os.environ.get("TALLY_FAILS_EVERYWHERE") == "factory":
        raise RuntimeError("no tally")
    return Tally()
"""


@pytest.fixture
def job(tmp_path):
    """A job on the tally: its configuration's path. Sample i of the data is the number i."""
    (tmp_path / "tally.py").write_text(TALLY)
    numbers = np.arange(SAMPLES, dtype=np.float32)[:, None]
    with h5py.File(tmp_path / "numbers.h5", "w") as file:
        for split in ("train", "test"):
            file[f"{split}/x"], file[f"{split}/y"] = numbers, np.zeros((SAMPLES, 1), np.float32)
    path = tmp_path / "tally.toml"
    path.write_text(
        f"""
        [run]
        epochs = {EPOCHS}
        [data]
        source = "hdf5"
        path = "numbers.h5"
        batch = 4
        portion = 12
        [model]
        factory = "tally:make"
        [server]
        rule = "sgd"
        rate = 1.0
        """
    )
    return path


@pytest.fixture
def script(bare_environment, tmp_path):
    """Return a function that runs a script with arguments: on a number of ranks, by given words, or in one process."""

    def run(source, *arguments, ranks=0, words=None):
        (tmp_path / "script.py").write_text(source)
        environment = {}
        if words is None:
            words, environment = command(ranks, ["script.py"]) if ranks else ([sys.executable, "script.py"], {})
        return subprocess.run(
            [*words, *map(str, arguments)],
            cwd=tmp_path, env={**environment, **bare_environment}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


@pytest.fixture
def start(bare_environment, tmp_path):
    """Start ``mpidl ARGUMENTS``; whatever still runs at the end is killed."""
    started = []

    def run(*arguments, **variables):
        process = subprocess.Popen(
            [sys.executable, "-m", "mpidl", *map(str, arguments)],
            cwd=tmp_path,
            env=bare_environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
