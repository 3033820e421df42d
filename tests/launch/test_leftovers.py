"""The sweep removes files of dead jobs; those of running jobs, of other users and of unknown owners stay."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from mpidl.launch import leftovers, shared_memory
from other_user import OTHER, TWO_USERS, start_as_another

#: A rank: makes and maps files as MPI libraries do (those named own/... in its own directory), and waits.
RANK = """
import mmap, os, sys
from pathlib import Path
from mpidl.launch import leftovers, shared_memory
shared_memory.SHARED_MEMORY = Path(sys.argv[1])
own, maps = shared_memory.own_directory(), []
leftovers.note()
for name in sys.argv[2:]:
    path = own / name[4:] if name.startswith("own/") else shared_memory.SHARED_MEMORY / name
    with open(path, "ab+") as file:
        file.truncate(4096)
        maps.append(mmap.mmap(file.fileno(), 4096))
leftovers.note()
print(own, flush=True)
sys.stdin.read()
"""
#: The number of a process that doesn't exist, and a time.
DEAD = f"{2**22 + 1}.1"


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A directory that stands for the node's shared memory; no process but those of the test sees it."""
    directory = tmp_path / "memory"
    directory.mkdir()
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", directory)
    monkeypatch.setattr(leftovers, "FIRST_SPACE", 0)
    return directory


@pytest.fixture
def rank(memory, bare_environment):
    """Start a rank that has files in shared memory, below a launcher of its own, and return it."""
    started = []

    def start(*names, **variables):
        launcher = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
        process = subprocess.Popen(
            [sys.executable, "-c", launcher, sys.executable, "-c", RANK, str(memory), *names],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env=bare_environment | variables,
        )  # fmt: skip
        process.directory = Path(process.stdout.readline().rstrip())
        process.rank = int(process.directory.name.split(".")[3])
        started.append(process)
        return process

    yield start
    for process in started:
        kill(process)
        process.stdin.close()
        process.stdout.close()


def lives(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def kill(process):
    """Kill a rank and its launcher at once."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        until = time.monotonic() + 60
        while lives(process.rank) and time.monotonic() < until:
            time.sleep(0.01)


def names(memory):
    return sorted(path.name for path in memory.iterdir())


def test_a_killed_job_is_swept(rank, memory, tmp_path):
    session = tmp_path / "ompi.123"
    (session / "1").mkdir(parents=True)
    process = rank("own/sm_segment.host.0.e2dd0001.0", "mpich_shm_1", PMIX_SERVER_TMPDIR=str(session))
    (process.directory / "osc_sm.host.e2dd0001.0.4").touch()  # killed before it could note it
    kill(process)
    assert len(names(memory)) == 2
    leftovers.sweep()
    assert names(memory) == []
    assert not session.exists()


def test_what_lives_stays(rank, memory, tmp_path):
    session = tmp_path / "ompi.123"
    session.mkdir()
    living = rank("mpich_shm_1", PMIX_SERVER_TMPDIR=str(session))
    before = names(memory)
    leftovers.sweep()
    assert names(memory) == before
    kill(rank("mpich_shm_2"))
    leftovers.sweep()
    assert names(memory) == before
    assert session.exists()
    living.stdin.close()
    assert living.wait(timeout=60) == 0
    assert names(memory) == ["mpich_shm_1"]  # MPI's to remove


def test_a_job_whose_launcher_lives_stays(rank, memory):
    process = rank("mpich_shm_1")
    note = process.directory / "note"
    record = json.loads(note.read_text())
    kill(process)
    note.write_text(json.dumps(record | {"launcher": [os.getpid(), shared_memory.start(os.getpid())]}))
    leftovers.sweep()
    assert len(names(memory)) == 2
    note.write_text(json.dumps(record))
    leftovers.sweep()
    assert names(memory) == []


def test_what_a_living_process_uses_stays(rank, memory):
    """One rank maps what another has made; the job is not yet dead."""
    one = rank("own/osc_sm", "mpich_shm_1")
    two = rank("mpich_shm_1", str(one.directory / "osc_sm"))
    kill(one)
    before = names(memory)
    leftovers.sweep()
    assert names(memory) == before
    assert (one.directory / "osc_sm").exists()
    kill(two)
    leftovers.sweep()
    assert names(memory) == []


def test_a_file_made_anew_under_a_noted_name_stays(rank, memory):
    kill(rank("open_mpi.0000"))
    os.rename(memory / "open_mpi.0000", memory / "kept")
    (memory / "open_mpi.0000").touch()
    leftovers.sweep()
    assert names(memory) == ["kept", "open_mpi.0000"]


def test_files_without_a_note_stay(rank, memory, tmp_path):
    for name in ("sm_segment.host.0.cccc0001.0", "mine.h5", "mpich_shm_2"):
        (memory / name).touch()
    (tmp_path / "data").mkdir()
    kill(rank("mpich_shm_1", "another.h5", PMIX_SERVER_TMPDIR=str(tmp_path / "data")))
    leftovers.sweep()
    assert names(memory) == ["another.h5", "mine.h5", "mpich_shm_2", "sm_segment.host.0.cccc0001.0"]
    assert (tmp_path / "data").exists()


@pytest.mark.parametrize("settled", [0.0, 1000.0])
def test_beside_a_living_job_a_segment_that_nobody_maps_is_swept_after_some_seconds(
    rank, memory, tmp_path, monkeypatch, settled
):
    """That of a rank that MPI has ended by exit(), after which there is no note."""
    monkeypatch.setattr(leftovers, "FIRST_SPACE", os.stat("/proc/self/ns/pid").st_ino)
    monkeypatch.setattr(leftovers, "TEMPORARY", tmp_path)
    monkeypatch.setattr(leftovers, "LAUNCHERS", "python")
    monkeypatch.setattr(leftovers, "SETTLED", settled)
    living = rank("mpich_shm_1")
    (tmp_path / "hydra_hwloc_xmlfile_a").touch()  # read by name
    (memory / "mpich_shm_2").touch()
    (living.directory / "note").unlink()
    leftovers.sweep()
    kept = ["mpich_shm_1", "mpich_shm_2"] if settled else ["mpich_shm_1"]
    assert [name for name in names(memory) if name.startswith("mpich")] == kept
    assert (tmp_path / "hydra_hwloc_xmlfile_a").exists()


def test_the_note_stays_while_another_process_uses_a_file(rank, memory):
    one, two = rank("mpich_shm_1"), rank("mpich_shm_1")
    kill(one)
    leftovers.sweep()
    assert one.directory.exists()
    (two.directory / "note").unlink()
    kill(two)
    leftovers.sweep()
    assert names(memory) == []


@pytest.mark.parametrize("note", [None, "", "{"])
def test_a_process_that_was_killed_before_it_had_a_note_is_swept(memory, note):
    directory = memory / f"{shared_memory.prefix()}{DEAD}.abc"
    directory.mkdir()
    if note is not None:
        (directory / "note").write_text(note)
    leftovers.sweep()
    assert names(memory) == []


def test_what_looks_like_a_dead_process_stays(memory, tmp_path):
    """A link, a file, a directory of another container, and one of another user."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    dead = f"{shared_memory.prefix()}{DEAD}"
    (memory / f"{dead}.link").symlink_to(precious)
    (memory / f"{dead}.file").touch()
    (memory / f"mpidl.{os.getuid()}.1.{DEAD}.container").mkdir()
    (memory / f"mpidl.{OTHER}.1.{DEAD}.other").mkdir()
    if os.getuid() == 0:
        (memory / f"{dead}.laid").mkdir()
        os.chown(memory / f"{dead}.laid", OTHER, OTHER)
    before = names(memory)
    leftovers.sweep()
    assert names(memory) == before
    assert (precious / "file").exists()


#: Sweeps a user's files in one directory that stands for shared memory and the temporary one, at each line of stdin,
#: while a process of that user looks like an MPI program's or its launcher. That process is started at the first line.
SWEEPS = """
import re, sys
from pathlib import Path
from mpidl.launch import leftovers, shared_memory
shared_memory.SHARED_MEMORY = leftovers.TEMPORARY = Path(sys.argv[1])
become()
def names():
    leftovers.sweep()
    print(*sorted(path.name for path in Path(sys.argv[1]).iterdir()), flush=True)
names()
sys.stdin.readline()
reader, writer = os.pipe()
if not (process := os.fork()):
    Path("/proc/self/comm").write_text(sys.argv[2])
    os.write(writer, b"!")
    sys.stdin.read()
    os._exit(0)
os.read(reader, 1)
for line in sys.stdin:
    Path(sys.argv[1], line.strip()).touch()
    names()
    os.kill(process, 9)
    os.wait()
    names()
"""


@TWO_USERS
@pytest.mark.parametrize(("program", "stays"), [("hydra_pmi_proxy", True), ("bash", False)])
def test_files_without_a_note_that_no_living_process_can_have_made_are_swept(program, stays):
    """MPICH's files, left by a job that was killed before it could note them, beside a living job."""
    with tempfile.TemporaryDirectory() as place:
        memory = Path(place)
        memory.chmod(0o1777)
        kept = ("mpich.h5", "mpich_shm_other")
        for name in (*kept, "mpich_shm_1", "sm_segment.host.0.1.0", "hydra_hwloc_xmlfile_a", "Intel_MPI_a"):
            (memory / name).touch()
            if name != "mpich_shm_other":
                os.chown(memory / name, OTHER, OTHER)
        process = start_as_another(SWEEPS, memory, program)
        with process.stdin, process.stdout:
            assert process.stdout.readline().split() == sorted(kept)
            time.sleep(1.1)  # times of processes are known to a second
            process.stdin.write("\nmpich_shm_2\n")
            process.stdin.flush()
            assert ("mpich_shm_2" in process.stdout.readline()) is stays
            assert process.stdout.readline().split() == sorted(kept)
        process.wait()
