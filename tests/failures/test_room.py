"""A node without room for what MPI puts there is one line; and what killed jobs have left there is swept."""

import os
import signal
from pathlib import Path

import pytest
from jobs_apart import parent, processes_of_ranks, trains, wait_for

from mpidl.launch.shared_memory import DIRECTORY_NAMES

SHARED_MEMORY = Path("/dev/shm")

#: Runs when Python starts: a directory looks as if it were nearly full.
FULL = """
import os
real = os.statvfs

def statvfs(path):
    found = real(path)
    if str(path) == os.environ.get("FULL"):
        return os.statvfs_result((found[0], found[1], *found[2:4], 1_000_000 // found[1], *found[5:]))
    return found

os.statvfs = statvfs
"""


@pytest.mark.parametrize("algorithm", ["downpour", "hogwild"])
def test_too_little_shared_memory_is_one_line(job, start, tmp_path, algorithm):
    (tmp_path / "sitecustomize.py").write_text(FULL)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    settings = ("--set", f"algorithm.name={algorithm}", "--set", "topology.servers=2")
    process = start("train", job, "-n", 5, *settings, FULL=str(SHARED_MEMORY), PYTHONPATH=path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = [line for line in errors.splitlines() if "as root" not in line]
    assert line.startswith("mpidl: memory of the windows: ")
    assert " MB needed in /dev/shm, 0 MB free: " in line
    assert not (tmp_path / "runs").exists()


def test_a_full_temporary_directory_is_one_line(job, start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FULL.replace("1_000_000", "4096"))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    process = start("train", job, "-n", 3, FULL=str(tmp_path), TMPDIR=str(tmp_path), PYTHONPATH=path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = [line for line in errors.splitlines() if "as root" not in line]
    assert line.startswith(f"mpidl: mpirun: 2 MB needed in {tmp_path}, 0 MB free: ")


def shared(tag):
    """Return the names in shared memory that have a job's tag."""
    return {path.name for path in SHARED_MEMORY.iterdir() if tag in path.name}


def mapped(process):
    """Return the job's number in the names of the files in shared memory that a process has mapped."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return next((line.rsplit(".", 2)[1] for line in lines if "/dev/shm/sm_segment." in line), None)


def directories(temporary):
    """Return the directories of jobs, which versions of Open MPI call differently."""
    return [each for each in temporary.iterdir() if DIRECTORY_NAMES.match(each.name)]


def test_what_a_killed_job_left_is_swept_by_the_next(job, start, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), "TALLY_SECONDS": "0.002"}
    process = start("train", job, "-n", 3, "--set", "run.epochs=100000", **variables)
    wait_for(lambda: trains(tmp_path))
    ranks = processes_of_ranks(tmp_path).values()
    tag = mapped(next(iter(ranks)))
    everything = [process.pid, *{parent(rank) for rank in ranks}, *ranks]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for each in everything:
            os.kill(each, number)
    process.wait()
    wait_for(lambda: not processes_of_ranks(tmp_path))
    left = SHARED_MEMORY / f"osc_sm.host.{tag}.0.9"
    left.touch()
    assert len(shared(tag)) > 1
    assert directories(temporary)

    following = start("train", job, "-n", 3, "--set", "run.name=following", TMPDIR=str(temporary))
    _, errors = following.communicate(timeout=60)
    assert following.returncode == 0, errors
    assert shared(tag) == set()
    assert not directories(temporary)
    assert not [each for rank in ranks for each in SHARED_MEMORY.glob(f"mpidl.*.{rank}")]
