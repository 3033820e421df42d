"""What tests see of a job that they started."""

import time
from pathlib import Path

SAMPLES = 101
EPOCHS = 6


def wait_for(condition, seconds=60):
    """Wait until something is true of a job, and return it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("the job didn't come so far")


def process_of_rank(rank, directory):
    """Return the process number of a rank of the job that runs in a directory."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            if f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables and (entry / "cwd").resolve() == directory:
                return int(entry.name)
        except OSError:
            continue
    return None


def trains(directory):
    """Tell whether the run's first checkpoint is there, which says that its ranks are at work."""
    return (directory / "runs" / "tally" / "checkpoints" / "0").exists()
