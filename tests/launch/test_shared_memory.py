"""A process's own directory in shared memory: what is in it, who can enter it, and when it goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpidl.errors import MpidlError
from mpidl.launch import environment, leftovers, shared_memory
from other_user import OTHER, TWO_USERS, as_another

#: Makes this process's directory in a memory of the test's.
OWN = """
import os, sys
from pathlib import Path
from mpidl.launch import leftovers, shared_memory
shared_memory.SHARED_MEMORY = Path(sys.argv[1])
own = shared_memory.own_directory()
"""


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A directory that stands for the node's shared memory."""
    directory = tmp_path / "memory"
    directory.mkdir()
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", directory)
    shared_memory.own_directory.cache_clear()
    yield directory
    shared_memory.own_directory.cache_clear()


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", OWN + script, *map(str, arguments)], text=True, capture_output=True, check=True
    ).stdout


def test_no_other_user_can_guess_or_enter_it(memory):
    one, two = (Path(run("print(own, oct(own.stat().st_mode))", memory).split()[0]) for _ in range(2))
    assert one.name.split(".")[:3] == two.name.split(".")[:3]
    assert one.name.split(".")[-1] != two.name.split(".")[-1]
    own = shared_memory.own_directory()
    assert own.parent == memory
    assert own.stat().st_mode & 0o777 == 0o700


def test_libraries_make_their_files_there_unless_the_user_says_where(memory, monkeypatch):
    for name in shared_memory.PLACES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("I_MPI_SHM_FILE_PREFIX_4K", f"{memory}/mpidl.0.1.2.3.inherited")
    monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", "/scratch")
    shared_memory.claim()
    found = {name: os.environ.get(name) for name in shared_memory.PLACES}
    assert found.pop("UCX_POSIX_DIR") is None
    assert found.pop("OMPI_MCA_btl_sm_backing_directory") == "/scratch"
    assert set(found.values()) == {str(shared_memory.own_directory())}
    assert shared_memory.of_windows() == memory
    monkeypatch.setenv(shared_memory.OF_WINDOWS, "/scratch/windows")
    assert shared_memory.of_windows() == Path("/scratch/windows")


@pytest.mark.parametrize("end", ["", "sys.exit()", "os.fork() or sys.exit(); os.wait(); assert own.exists()"])
def test_it_goes_when_its_process_ends(memory, end):
    run(f"leftovers.note(); (own / 'socket').touch(); shared_memory.remove_at_exit(own / 'socket')\n{end}", memory)
    assert list(memory.iterdir()) == []


def test_it_stays_with_what_is_left_in_it(memory):
    run("(own / 'sm_segment').touch(); leftovers.note()", memory)
    (own,) = memory.iterdir()
    assert [each.name for each in own.iterdir()] == ["sm_segment"]


def test_it_goes_after_mpi_has_been_finalised(memory):
    """Handlers of Python's run before that."""
    script = "import atexit; leftovers.note(); atexit.register(lambda: print(sorted(p.name for p in own.iterdir())))"
    assert run(script, memory) == "['note']\n"


def test_without_shared_memory_it_is_in_the_temporary_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", tmp_path / "missing")
    monkeypatch.setattr(os, "environ", {"TMPDIR": str(tmp_path)})
    shared_memory.own_directory.cache_clear()
    leftovers.sweep()
    leftovers.note()
    shared_memory.claim()
    assert shared_memory.own_directory().parent == tmp_path
    assert os.environ == {"TMPDIR": str(tmp_path)}
    shared_memory.own_directory.cache_clear()
    os.environ["TMPDIR"] = str(tmp_path / "missing")
    with pytest.raises(MpidlError, match=f"no directory can be made in .* or {tmp_path / 'missing'}: make room there"):
        shared_memory.own_directory()


@pytest.mark.parametrize("kind", ["link", "pipe", "file"])
def test_what_lies_under_a_guessed_name_is_left_alone(memory, tmp_path, kind):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (f"mpidl.{os.getuid()}.{os.getpid()}", f".mpidl.{os.getuid()}.{os.getpid()}"):
        if kind == "link":
            (memory / name).symlink_to(victim)
        elif kind == "pipe":
            os.mkfifo(memory / name)
        else:
            (memory / name).touch()
    before = sorted(memory.iterdir())
    leftovers.sweep()
    leftovers.note()
    assert victim.read_text() == "mine"
    assert sorted(memory.iterdir()) == sorted([*before, shared_memory.own_directory()])


@TWO_USERS
def test_a_file_of_another_user_is_not_taken_for_one_of_mpi(memory):
    own, other = memory / "mpich_shm_1", memory / "mpich_shm_2"
    with own.open("wb+"), other.open("wb+"):
        leftovers.note()
        os.chown(other, OTHER, OTHER)
        with pytest.raises(MpidlError, match=f"mpich_shm_2 belongs to another user .uid {OTHER}., and this job's MPI"):
            leftovers.note()


@TWO_USERS
def test_a_launcher_in_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    """Open MPI's mpirun uses what it finds under the number of its process."""
    directory = tmp_path / "shared" / "ompi.123"
    directory.mkdir(parents=True)
    monkeypatch.setenv(shared_memory.OF_LAUNCHER, str(directory))
    directory.parent.chmod(0o1777)
    shared_memory.check_launcher()
    os.chown(directory, OTHER, OTHER)
    with pytest.raises(MpidlError, match=rf"ompi.123 belongs to another user \(uid {OTHER}\).* `mpidl train -n`"):
        shared_memory.check_launcher()
    directory.parent.chmod(0o755)  # an administrator has made it
    shared_memory.check_launcher()


@TWO_USERS
def test_another_user_cannot_enter(memory):
    own = shared_memory.own_directory()
    leftovers.note()
    own.parent.chmod(0o1777)
    script = "import sys\nbecome()\ntry: os.listdir(sys.argv[1])\nexcept OSError as error: print(error.strerror)"
    assert as_another(script, own) == "Permission denied\n"


@TWO_USERS
def test_it_is_the_home_directory_of_a_user_without_one():
    """Open MPI loads the libraries that it finds there: others must not enter it."""
    script = "from mpidl.launch.environment import home\nbecome(); os.environ.pop('HOME', None)\n"
    script += "print(*divmod(os.stat(home()).st_mode, 0o1000)[1:], os.stat(home()).st_uid)"
    assert as_another(script).split() == [str(0o700), str(OTHER)]


def test_the_first_rank_of_a_node():
    assert environment.first_of_node({})
    assert environment.first_of_node({"OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    assert not environment.first_of_node({"MPI_LOCALRANKID": "2"})
    assert not environment.first_of_node({"SLURM_LOCALID": "1"})
