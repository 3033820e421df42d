"""Two users of one node: neither can read, change, block or stop the other's run."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from other_user import BECOME, TWO_USERS

#: Goes on with its arguments where shared memory is the test's own: files placed there must not affect other jobs.
APART = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec "$@"', "sh"]

#: Lays traps under the names that can be guessed of what the next processes make, then tries until stdin is closed
#: whatever another user could do to a job of root's, and prints what succeeded.
ATTACK = """
import json, select, socket, sys
from pathlib import Path
temporary, run, victim = map(Path, sys.argv[1:])
shared, succeeded = Path("/dev/shm"), set()
become()

for number in range(os.getpid() + 1, os.getpid() + 3000):
    for name in (f"mpidl.0.{number}", f".mpidl.0.{number}"):
        os.symlink(victim, shared / name) if number % 2 else os.mkfifo(shared / name)
    (temporary / f"ompi.{number}").mkdir(0o777)
print("laid", flush=True)

def attempt(what, path, action):
    try:
        action()
    except OSError:
        return
    succeeded.add(f"{what} {path}")

def opened(path, flags):
    os.close(os.open(path, flags | os.O_NONBLOCK))

def ring(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as bell:
        bell.sendto(b"!", address.replace("@", chr(0)))

while not select.select([sys.stdin], [], [], 0.05)[0]:
    for entry in [*os.scandir(shared), *os.scandir(temporary)]:
        try:
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                continue
        except FileNotFoundError:
            continue
        if entry.is_dir():
            attempt("list", entry.path, lambda: os.listdir(entry.path))
            attempt("take", entry.path, lambda: os.rename(entry.path, entry.path + ".taken"))
        elif not entry.name.startswith("open_mpi."):  # Open MPI tries whether it could, by an exclusive name
            succeeded.add(f"find {entry.path}")
    for path in run.rglob("*"):
        attempt("write", path, lambda: opened(path, os.O_WRONLY))
    attempt("lock", run / ".lock", lambda: opened(run / ".lock", os.O_RDONLY))
    for line in Path("/proc/net/unix").read_text().splitlines():
        if "mpidl" in (name := line.split()[-1]) and name[0] in "@/":
            attempt("ring", name, lambda: ring(name))
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mine = process.stat().st_uid == os.getuid() or b"mpidl" not in (process / "cmdline").read_bytes()
        except OSError:
            continue
        if not mine:
            attempt("signal", process, lambda: os.kill(int(process.name), 0))
            attempt("see", process, lambda: opened(process / "environ", os.O_RDONLY))
            attempt("change", process, lambda: opened(process / "mem", os.O_RDWR))
print(json.dumps(sorted(succeeded)))
"""


@pytest.fixture
def place():
    """A directory that every user can reach, which tests' own directories are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def attack(place):
    """The attack of another user on the job with the temporary directory ``temporary`` and the run ``runs/digits``."""
    if shutil.which("unshare") is None or subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made")
    (place / "temporary").mkdir()
    (place / "temporary").chmod(0o1777)
    victim = place / "victim"
    victim.write_text("mine")
    victim.chmod(0o600)
    process = subprocess.Popen(
        [*APART, sys.executable, "-c", BECOME + ATTACK, place / "temporary", place / "runs" / "digits", victim],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip
    assert process.stdout.readline() == "laid\n"
    yield process
    process.kill()
    process.communicate()


@TWO_USERS
@pytest.mark.long
def test_another_user_can_do_nothing_to_a_run(attack, place, bare_environment):
    words = ["nsenter", f"--mount=/proc/{attack.pid}/ns/mnt", "env", "-C", place, sys.executable, "-m", "mpidl"]
    configuration = Path(__file__).parents[2] / "jobs" / "digits.toml"
    job = subprocess.run(
        [*words, "train", configuration, "-n", "3", "--set", "run.epochs=3", "--set", "run.dir=runs"],
        env=bare_environment | {"TMPDIR": str(place / "temporary")}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr
    assert (place / "runs" / "digits" / "summary.json").exists()
    assert (place / "victim").read_text() == "mine"
    output, _ = attack.communicate("\n")
    assert json.loads(output) == []
    assert not [each for each in (place / "temporary").iterdir() if each.stat().st_uid == os.getuid()]
