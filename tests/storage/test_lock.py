"""Two runs on one directory exclude each other; a lock ends with its process."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest

from mpidl.errors import MpidlError, UsageError
from mpidl.storage.lock import Lock

HOLD = "import sys; from pathlib import Path; from mpidl.storage.lock import Lock\n"
HOLD += "lock = Lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path, bare_environment):
    """Another process that holds the lock of ``tmp_path``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], env=bare_environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_is_told_who_holds_it(tmp_path, holder):
    with pytest.raises(UsageError) as error:
        Lock(tmp_path)
    assert str(error.value) == f"{tmp_path}: in use by process {holder.pid} on {socket.gethostname()}"


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_it_ends_with_its_process(tmp_path, holder, end):
    if end is None:
        holder.stdin.close()
    else:
        os.kill(holder.pid, end)
    holder.wait()
    Lock(tmp_path).close()


def test_where_the_file_system_has_no_locks_runs_go_on(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    Lock(tmp_path).close()


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(MpidlError, match=r"\.lock: can't be written: Is a directory$"):
        Lock(tmp_path)


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o600), (0o002, 0o660), (0o077, 0o600), (0, 0o666)])
def test_who_cannot_write_a_run_cannot_lock_it(tmp_path, mask, expected):
    """A reader's lock would exclude the owner. Earlier versions left files that everybody can read."""
    before = os.umask(mask)
    try:
        Lock(tmp_path).close()
        assert (tmp_path / ".lock").stat().st_mode & 0o777 == expected
        (tmp_path / ".lock").chmod(expected | 0o444)
        Lock(tmp_path).close()
        assert (tmp_path / ".lock").stat().st_mode & 0o777 == expected
    finally:
        os.umask(before)
