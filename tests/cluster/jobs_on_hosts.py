"""What tests see of a job on several hosts, and a job that counts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import h5py
import numpy as np
from hosts import Hosts

SAMPLES, EPOCHS = 101, 8
#: A model whose parameter i counts how often sample i was applied, if plain SGD has a rate of 1.
COUNTING = """
import numpy as np

class Counting:
    def __init__(self, samples):
        self.parameters = np.zeros(samples)

    def loss_and_gradient(self, batch):
        numbers = batch.inputs[:, 0].astype(int)
        return 0.0, -np.bincount(numbers, minlength=self.parameters.size).astype(float)

def make(dataset, seed):
    return Counting(dataset.train.samples)
"""
CONFIGURATION = f"""
[run]
epochs = {EPOCHS}
[data]
source = "hdf5"
path = "numbers.h5"
batch = 4
portion = 12
[model]
factory = "counting_model:make"
[server]
rule = "sgd"
rate = 1.0
[checkpoint]
every = 0.5
"""


def write_counting(directory: Path) -> Path:
    """Write the job that counts into a directory; return its configuration's path."""
    (directory / "counting_model.py").write_text(COUNTING)
    numbers = np.arange(SAMPLES, dtype=np.float32)[:, None]
    with h5py.File(directory / "numbers.h5", "w") as file:
        for split in ("train", "test"):
            file[f"{split}/x"], file[f"{split}/y"] = numbers, np.zeros((SAMPLES, 1), np.float32)
    path = directory / "counting.toml"
    path.write_text(CONFIGURATION)
    return path


#: A model whose gradient is as long as one likes and takes a quarter of a second.
WIDE = """
import numpy as np

class Wide:
    def __init__(self, size):
        self.parameters, self._gradient = np.zeros(size, np.float32), np.ones(size, np.float32)

    def loss_and_gradient(self, batch):
        return 0.0, self._gradient

def make(dataset, seed):
    return Wide({size})
"""


def write_wide(directory: Path, size: int) -> Path:
    """Write a job of `size` parameters, with an epoch longer than it, into a directory; see `write_counting`."""
    (directory / "wide_model.py").write_text(WIDE.replace("{size}", str(size)))
    with h5py.File(directory / "wide.h5", "w") as file:
        for split, samples in (("train", 1000), ("test", 1)):
            file[f"{split}/x"] = file[f"{split}/y"] = np.zeros((samples, 1), np.float32)
    path = directory / "wide.toml"
    path.write_text(
        """
[data]
source = "hdf5"
path = "wide.h5"
batch = 1
portion = 1
[model]
factory = "wide_model:make"
[server]
rule = "sgd"
rate = 1.0
[checkpoint]
every = 1000.0
[debug]
gradient_seconds = 0.25
"""
    )
    return path


def last_step(run: Path) -> int:
    """Return the step of a run's last checkpoint; -1 if there is none."""
    return max((int(path.name) for path in run.glob("checkpoints/*") if path.name.isdecimal()), default=-1)


def counts(run: Path) -> list[float]:
    """Return how often a run's last checkpoint has applied each sample."""
    with h5py.File(run / "checkpoints" / str(last_step(run)) / "index.h5") as index:
        return index["parameters/parameters"][...].tolist()


def summary(run: Path) -> dict:
    """Return the summary of a run."""
    return json.loads((run / "summary.json").read_text())


def rank_of(number: int, directory: Path, variable: bytes = b"PMIX_RANK") -> int | None:
    """Return the process number of a rank that works in a directory, on whatever host."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            if variable + b"=%d" % number in variables and os.readlink(entry / "cwd") == str(directory):
                return int(entry.name)
        except OSError:
            continue
    return None


def processes_on(hosts: Hosts, host: str, name: str) -> list[int]:
    """Return the numbers of the processes of some name on a host."""
    there = os.readlink(f"/proc/{hosts.process(host)}/ns/uts")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "comm").read_text().strip() == name and os.readlink(entry / "ns/uts") == there:
                found.append(int(entry.name))
        except OSError:
            continue
    return found
