"""What tests see of a job that they started."""

import json
import time
from pathlib import Path

import h5py
import numpy as np

SAMPLES = 101
EPOCHS = 6


def wait_for(condition, seconds=300):
    """Wait until something is true of a job, and return it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("the job didn't come so far")


def process_of_rank(rank, directory):
    """Return the process number of a rank of the job that runs in a directory."""
    return processes_of_ranks(directory).get(rank)


def processes_of_ranks(directory):
    """Return the process numbers of the ranks of the job that runs in a directory, by rank."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = dict(each.partition(b"=")[::2] for each in (entry / "environ").read_bytes().split(b"\0"))
            rank = variables.get(b"OMPI_COMM_WORLD_RANK", variables.get(b"PMI_RANK"))
            if rank is not None and (entry / "cwd").resolve() == directory:
                found[int(rank)] = int(entry.name)
        except OSError:
            continue
    return found


def status(process):
    """Return the state of a process, ``Z`` if it has ended, and the process number of its parent."""
    try:
        state, number = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "Z", 0
    return state, int(number)


def parent(process):
    """Return the process number of a process's parent."""
    return status(process)[1]


def ended(process, code=0):
    """Wait until a job has ended with an exit code, and return what it printed to stdout and to stderr."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors
    return output, errors


def summary_of(process, code=0):
    """Wait until a job has ended with an exit code, and return the summary that it printed."""
    return json.loads(ended(process, code)[0].splitlines()[-1])


def newest(run):
    """Return the path of a run's last checkpoint."""
    return max((run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))


def parameters(directory):
    """Return the parameters of the tally's last checkpoint."""
    with h5py.File(newest(directory / "runs" / "tally") / "index.h5") as index:
        return index["parameters/parameters"][...]


def trains(directory):
    """Tell whether the run's first checkpoint is there, which says that its ranks are at work."""
    return (directory / "runs" / "tally" / "checkpoints" / "0").exists()


def assert_exact(directory):
    """Check that the tally's run has applied every sample once in each epoch."""
    expected = -(1.0 + np.arange(13)) * EPOCHS * SAMPLES * (SAMPLES + 1) / 2
    assert np.array_equal(parameters(directory), expected)
