"""Jobs follow the call paths of CONTRIBUTING.rst and the tour: each step is called, and after it the next one."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
#: A numbered step, and any other function that the text names behind its file.
STEP = re.compile(r"^\d+\. ``([\w/]+\.py)``: ``([\w.]+)``", re.MULTILINE)
NAMED = re.compile(r"``([\w/]+\.py)``:\s+``([\w.]+)``")
#: A file of the package.
FILE = re.compile(r"``(?!docs/)([\w/]+\.py)``")
CONTRIBUTING = (ROOT / "CONTRIBUTING.rst").read_text()
TEXT = CONTRIBUTING.partition("Five call paths")[2].partition("An algorithm\n")[0]
TOUR = (ROOT / "docs" / "tour.rst").read_text()

CONFIGURATION = """
[run]
epochs = 3
[data]
source = "idx"
path = "data"
batch = 4
[data.normalise]
mean = 0.1
[data.augment]
noise = 0.01
[[model.layer]]
type = "locally_connected2d"
channels = 2
size = 3
cut = "rows"
[[model.layer]]
type = "dense"
units = 10
[checkpoint]
every = 0.01
keep = 1
[debug]
gradient_seconds = 0.005
"""
#: How the variables begin that an MPI launcher around the tests sets.
OF_LAUNCHERS = ("OMPI_", "PMI", "PRTE_", "MPI_", "SLURM_", "MPIDL_")
#: Arguments and environment of each job. Together they take every step.
JOBS = {
    "plain": (["-n", 3], {}),
    "cut": (["-n", 4, "--resume", "runs/plain", "--set", "run.epochs=4", "--set", "topology.partitions=2"], {}),
    "relayed": (["-n", 8, "--set", "topology.relay=true"], {"MPIDL_RANKS_PER_NODE": "4"}),
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """When each function was called in the jobs: sorted times by ``file:name``, methods also under their class."""
    directory = tmp_path_factory.mktemp("ways")
    (directory / "traces").mkdir()
    shutil.copy(Path(__file__).with_name("tracing.py"), directory / "sitecustomize.py")
    write_data(directory / "data")
    for name, (arguments, variables) in JOBS.items():
        run_traced(directory, name, arguments, variables)
    found = defaultdict(list)
    for path in (directory / "traces").iterdir():
        for key, times in json.loads(path.read_text()).items():
            file, _, qualified = key.partition(":")
            parts = qualified.split(".")
            for count in range(1, len(parts) + 1):
                found[f"{file}:{'.'.join(parts[:count])}"] += times
    return {key: sorted(times) for key, times in found.items()}


def write_data(directory):
    """Write images of 9 x 9 random pixels in the IDX format."""
    directory.mkdir()
    random = np.random.default_rng(0)
    for split, samples in (("train", 48), ("t10k", 12)):
        images, labels = random.integers(0, 256, (samples, 9, 9), np.uint8), np.arange(samples, dtype=np.uint8) % 10
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            header = np.array([0x0800 + values.ndim, *values.shape], ">u4")
            (directory / f"{split}-{name}-ubyte").write_bytes(header.tobytes() + values.tobytes())


def run_traced(directory, name, arguments, variables):
    """Run a job whose processes write down what they call."""
    (directory / f"{name}.toml").write_text(CONFIGURATION)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(OF_LAUNCHERS)}
    environment |= variables | {"TRACES": str(directory / "traces"), "PYTHONPATH": str(directory)}
    words = [sys.executable, "-m", "mpidl", "train", f"{name}.toml", *map(str, arguments)]
    done = subprocess.run(
        words, cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def ways():
    """Return the steps of each way, as ``file:name``."""
    parts = re.split(r"^[A-Z][^\n]*:\n\n", TEXT, flags=re.MULTILINE)[1:]
    return [[f"{file}:{name}" for file, name in STEP.findall(part)] for part in parts]


def test_each_way_takes_at_most_eight_steps():
    numbers = list(map(int, re.findall(r"^(\d+)\. ", TEXT, re.MULTILINE)))
    assert numbers == [number for way in ways() for number in range(1, len(way) + 1)]
    assert len(ways()) == 5
    assert max(numbers) <= 8


def test_every_file_and_folder_exists():
    for path in re.findall(r"``((?:[\w]+/)*\w+(?:/|\.py))``", CONTRIBUTING):
        places = [ROOT / path, *(ROOT / "src" / "mpidl").rglob(path.rstrip("/"))]
        assert any(place.exists() for place in places), path


@pytest.mark.parametrize("way", range(5))
def test_each_step_of_a_way_is_followed_by_the_next(calls, way):
    follow(calls, ways()[way])


def follow(calls, steps):
    """Check that the functions are called, each at some time after the one before."""
    now = 0.0
    for step, following in itertools.pairwise([*steps, None]):
        later = [each for each in calls.get(step, ()) if each >= now]
        assert later, f"{step} is not called" if step not in calls else f"{step} is called only before"
        now = later[0]
        assert following != step


def test_each_step_of_the_tour_is_followed_by_the_next(calls):
    steps = [f"{file}:{name}" for file, name in STEP.findall(TOUR)]
    assert len(steps) == len(re.findall(r"^\d+\. ", TOUR, re.MULTILINE)) >= 18
    assert len(set(FILE.findall(TOUR))) <= 12
    follow(calls, steps)


@pytest.mark.parametrize("text", [TEXT, TOUR])
def test_every_function_that_is_named_is_called(calls, text):
    named = {f"{file}:{name}" for file, name in NAMED.findall(text)}
    assert len(named) > 5
    assert not [each for each in named if each not in calls]
