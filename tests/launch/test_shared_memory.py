"""What a dead job has left is swept; what belongs to the living, to others or to nobody known is not."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpidl.launch import shared_memory

#: A rank: makes and maps files as MPI libraries do, notes them, says so, and waits.
RANK = """
import mmap, os, sys
from pathlib import Path
from mpidl.launch import shared_memory
shared_memory.SHARED_MEMORY = Path(sys.argv[1])
maps = []
for name in sys.argv[2:]:
    with open(shared_memory.SHARED_MEMORY / name, "wb+") as file:
        file.truncate(4096)
        maps.append(mmap.mmap(file.fileno(), 4096))
shared_memory.note()
print("noted", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A directory that stands for the node's shared memory."""
    directory = tmp_path / "memory"
    directory.mkdir()
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", directory)
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
        assert process.stdout.readline() == "noted\n"
        notes = [json.loads(note.read_text())["processes"] for note in memory.glob("mpidl.*")]
        process.identities = next(note for note in notes if note[1][0] == process.pid)
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
        until = time.monotonic() + 10
        while any(lives(number) for number, _ in process.identities) and time.monotonic() < until:
            time.sleep(0.01)


def names(memory):
    return sorted(path.name for path in memory.iterdir())


def test_a_killed_job_is_swept(rank, memory, tmp_path):
    session = tmp_path / "ompi.123"
    (session / "1").mkdir(parents=True)
    process = rank("sm_segment.host.0.e2dd0001.0", "mpich_shm_1", PMIX_SERVER_TMPDIR=str(session))
    for name in ("osc_sm.host.e2dd0001.0.4", "sm_segment.host.0.e2dd0001.3"):
        (memory / name).touch()  # of a rank that was killed before it could note it
    kill(process)
    assert len(names(memory)) == 5
    shared_memory.sweep()
    assert names(memory) == []
    assert not session.exists()


def test_what_lives_stays(rank, memory, tmp_path):
    session = tmp_path / "ompi.123"
    session.mkdir()
    living = rank("sm_segment.host.0.aaaa0001.0", PMIX_SERVER_TMPDIR=str(session))
    before = names(memory)
    shared_memory.sweep()
    assert names(memory) == before
    kill(rank("sm_segment.host.0.bbbb0001.0"))
    shared_memory.sweep()
    assert names(memory) == before
    assert session.exists()
    living.stdin.close()
    assert living.wait(timeout=10) == 0
    assert names(memory) == ["sm_segment.host.0.aaaa0001.0"]  # MPI's to remove; the note is gone


def test_a_job_whose_launcher_lives_stays(rank, memory):
    process = rank("mpich_shm_1")
    note = next(memory.glob("mpidl.*"))
    record = json.loads(note.read_text())
    record["processes"][0] = [2**22 + 1, 1]
    note.write_text(json.dumps(record))
    shared_memory.sweep()
    assert "mpich_shm_1" in names(memory)
    kill(process)
    shared_memory.sweep()
    assert names(memory) == []


def test_what_a_living_process_uses_stays(rank, memory):
    """Two ranks of one job map the same file; the job is not yet dead."""
    one, _ = rank("mpich_shm_1"), rank("mpich_shm_2", "mpich_shm_1")
    (memory / "mpich_shm_1").touch()
    kill(one)
    shared_memory.sweep()
    assert "mpich_shm_1" in names(memory)


def test_a_file_made_anew_under_a_noted_name_stays(rank, memory):
    kill(rank("open_mpi.0000"))
    os.rename(memory / "open_mpi.0000", memory / "kept")
    (memory / "open_mpi.0000").touch()
    shared_memory.sweep()
    assert names(memory) == ["kept", "open_mpi.0000"]


def test_what_nobody_noted_stays(rank, memory, tmp_path):
    for name in ("sm_segment.host.0.cccc0001.0", "mine.h5", "mpich_shm_2"):
        (memory / name).touch()
    (tmp_path / "data").mkdir()
    kill(rank("mpich_shm_1", "another.h5", PMIX_SERVER_TMPDIR=str(tmp_path / "data")))
    shared_memory.sweep()
    assert names(memory) == ["another.h5", "mine.h5", "mpich_shm_2", "sm_segment.host.0.cccc0001.0"]
    assert (tmp_path / "data").exists()


@pytest.mark.parametrize("other", ["boot", "container"])
def test_notes_of_another_node_or_container_stay(memory, other):
    shared_memory.note()
    boot, container = json.loads((memory / f"mpidl.{os.getuid()}.{os.getpid()}").read_text())["node"]
    node = ["another boot", container] if other == "boot" else [boot, 1]
    note = memory / f"mpidl.{os.getuid()}.77"
    note.write_text(
        json.dumps({"node": node, "processes": [[2**22 + 1, 1]], "files": {}, "jobs": [], "directories": []})
    )
    shared_memory.sweep()
    assert note.exists()


@pytest.mark.parametrize("text", ["", "{"])
def test_a_note_that_cannot_be_read_is_left(memory, text):
    note = memory / f"mpidl.{os.getuid()}.77"
    note.write_text(text)
    shared_memory.sweep()
    assert note.read_text() == text


def test_a_full_memory_stops_nobody(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", tmp_path / "missing")
    shared_memory.sweep()
    shared_memory.note()
