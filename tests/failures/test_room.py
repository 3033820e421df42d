"""A node without room for what MPI puts there is one line; and what killed jobs have left there is swept."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from jobs_apart import ended, parent, processes_of_ranks, status, trains, wait_for

from mpidl.launch import leftovers
from mpidl.launch.command import command

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


@pytest.mark.parametrize("algorithm", ["downpour", pytest.param("hogwild", marks=pytest.mark.long)])
def test_too_little_shared_memory_is_one_line(job, start, tmp_path, algorithm):
    (tmp_path / "sitecustomize.py").write_text(FULL)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    settings = ("--set", f"algorithm.name={algorithm}", "--set", "topology.servers=2")
    _, errors = ended(start("train", job, "-n", 5, *settings, FULL=str(SHARED_MEMORY), PYTHONPATH=path), 1)
    (line,) = [line for line in errors.splitlines() if "as root" not in line]
    assert line.startswith("mpidl: memory of the windows: ")
    assert " MB needed in /dev/shm, 0 MB free: " in line
    assert not (tmp_path / "runs").exists()


def test_a_full_temporary_directory_is_one_line(job, start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FULL.replace("1_000_000", "4096"))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    _, errors = ended(start("train", job, "-n", 3, FULL=str(tmp_path), TMPDIR=str(tmp_path), PYTHONPATH=path), 1)
    (line,) = [line for line in errors.splitlines() if "as root" not in line]
    assert line.startswith(f"mpidl: mpirun: 2 MB needed in {tmp_path}, 0 MB free: ")


def left(temporary, processes):
    """Return the directories that processes have in shared memory, and what is in a temporary one."""
    own = [each for process in processes for each in SHARED_MEMORY.glob(f"mpidl.{os.getuid()}.*.{process}.*")]
    return own + [each for each in temporary.iterdir() if each.is_dir()]


def kill(processes):
    """Kill processes, none of which sees the end of another, and wait until they have ended."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for each in processes:
            os.kill(each, number)
    wait_for(lambda: all(status(each)[0] in "ZX" for each in processes))


def test_what_a_killed_job_left_is_swept_by_the_next_which_leaves_nothing(job, start, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), "TALLY_SECONDS": "0.002"}
    process = start("train", job, "-n", 3, "--set", "run.epochs=100000", **variables)
    wait_for(lambda: trains(tmp_path))
    ranks = processes_of_ranks(tmp_path).values()
    keepers = {parent(rank) for rank in ranks}
    everything = [process.pid, *{parent(keeper) for keeper in keepers}, *keepers, *ranks]
    kill(everything)
    process.wait()
    assert len(left(temporary, [process.pid, *ranks])) == 5

    # The next job is ended by a rank that fails: none of its ranks removes anything.
    variables = {"TMPDIR": str(temporary), "TALLY_FAILS": "2"}
    following = start("train", job, "-n", 3, "--set", "run.name=following", **variables)
    ranks = wait_for(lambda: len(found := processes_of_ranks(tmp_path)) == 3 and found.values())
    everything += [*ranks, *map(parent, ranks)]
    _, errors = following.communicate(timeout=300)
    assert "rank 2" in errors
    assert following.returncode == 1
    assert left(temporary, [following.pid, *everything]) == []


#: A rank that stands still in MPI_Init, where the library has made its files, or in MPI_Finalize. It calls MPI from C,
#: because Python has ended by then.
STANDS_STILL = """
import atexit, ctypes, sys
from pathlib import Path
import mpidl
from mpidl.launch import leftovers
from mpidl.runs import agreement
libc = ctypes.CDLL(None)
if sys.argv[1] == "MPI_Init":
    note = leftovers.note
    leftovers.note = lambda: libc.pause() if "mpi4py.MPI" in sys.modules else note()
    atexit.register(print)
agreement.communicator()
from mpi4py import MPI
library, key = ctypes.CDLL(MPI.__file__), ctypes.c_int()
handle = ctypes.c_void_p if MPI._sizeof(MPI.Comm) == 8 else ctypes.c_int
library.MPI_Comm_create_keyval(libc.pause, libc.pause, ctypes.byref(key), None)
library.MPI_Comm_set_attr(handle(MPI._handleof(MPI.COMM_SELF)), key, None)
"""


def stands_still(process):
    """Whether a process is in ``pause``."""
    try:
        return Path(f"/proc/{process}/syscall").read_text().split()[0] == "34"
    except FileNotFoundError:
        raise AssertionError("the rank has ended") from None


@pytest.mark.long
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls are those of x86-64")
@pytest.mark.parametrize("where", ["MPI_Init", "MPI_Finalize"])
def test_what_a_job_left_that_was_killed_where_mpi_makes_or_removes_its_files_is_swept(
    bare_environment, tmp_path, where
):
    words, variables = command(2, ["-c", STANDS_STILL, where])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(words, cwd=tmp_path, env=bare_environment | variables | {"TMPDIR": str(temporary)})
    try:
        ranks = wait_for(lambda: len(found := processes_of_ranks(tmp_path).values()) == 2 and list(found))
        wait_for(lambda: all(map(stands_still, ranks)))
    finally:
        kill({process.pid, *(each for rank in processes_of_ranks(tmp_path).values() for each in (parent(rank), rank))})
        process.wait()
    assert left(temporary, ranks)
    leftovers.sweep()
    assert left(temporary, ranks) == []
