"""Batch scripts whose job unpacks an environment on each node, with schedulers as shell scripts."""

import os
import shutil
import socket
import subprocess
import tarfile
import time
from itertools import count
from pathlib import Path

import pytest

from mpidl.launch.batch import COMMANDS, BatchScript, Work

#: Stands for each scheduler's commands. Each node starts a command twice, as one with two ranks does under PBS.
COMMAND = """#!/bin/bash
case $1 in
    getattr) echo "$JOB" ;;
    resource) echo 0 ;;
esac
while [ $# -gt 0 ] && [ "$1" != /bin/bash ] && [ "$1" != mpidl ]; do shift; done
[ $# -gt 0 ] && [ ! -e cancelled ] || exit 0
[ "$1" = /bin/bash ] || exec "$@"
"$@" & first=$!
"$@" & second=$!
trap 'kill $first $second' TERM
code=0
wait $first || code=$?
wait $second || code=$?
[ "$(basename "$0")" != pbsdsh ] || { [ $code = 0 ] || echo "pbsdsh: task 1 exit status $code"; exit 0; }
exit $code
"""
#: Stands for mpidl, and for what adapts a conda environment to its place. When told to stop, it saves.
MPIDL = """#!/bin/bash
echo "$0 $(stat -c %a "$(dirname "$0")/..")" >> "$CALLS"
[ -n "$WAITS" ] || exit 0
trap 'sleep 0.3; [ ! -e "$0" ] || echo saved >> "$CALLS"; exit 75' TERM
touch ready
sleep 60 & wait
"""
#: Numbers of jobs.
NUMBERS = count(1)
PYTHON = '#!/bin/sh\necho "unpacked $1" >> "$CALLS"\n'


@pytest.fixture
def environment(tmp_path):
    """The directory of an environment."""
    programs = tmp_path / "environment" / "bin"
    programs.mkdir(parents=True)
    for name, text in {"mpidl": MPIDL, "python": PYTHON, "conda-unpack": ""}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return programs.parent


@pytest.fixture
def archive(environment, tmp_path):
    """An archive of it."""
    with tarfile.open(tmp_path / "an env.tar.gz", "w:gz") as file:
        file.add(environment, ".")
    return tmp_path / "an env.tar.gz"


@pytest.fixture
def begin(tmp_path):
    """Begins the job of an archive; returns its process, and the directory in which it is unpacked."""
    (tmp_path / "bin").mkdir()
    for name in ("srun", "scontrol", "squeue", "pbsdsh", "qsub", "flux"):
        (tmp_path / "bin" / name).write_text(COMMAND)
        (tmp_path / "bin" / name).chmod(0o755)

    def start(scheduler, archive, number=None, **variables):
        number = number or f"{os.getpid()}-{next(NUMBERS)}"
        run = tmp_path / "runs" / f"name-{number}"
        run.mkdir(parents=True)
        (run / "summary.json").write_text('{"interrupted":false}')
        work = Work.training(Path("a.toml"), "name", Path("runs"), [])
        text = BatchScript(scheduler, work, 2, 2, 3600, env=archive).script()
        own = {
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls"), "JOB": number,
            "SLURM_JOB_ID": number, "PBS_JOBID": f"{number}.head", "PBS_O_WORKDIR": str(tmp_path),
        }  # fmt: skip
        process = subprocess.Popen(
            ["bash", "-c", text], cwd=tmp_path, env=own | variables, text=True, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        return process, Path(f"/dev/shm/mpidl-{number}")

    return start


@pytest.mark.parametrize("scheduler", COMMANDS)
def test_ranks_start_in_an_environment_that_is_unpacked_once_on_a_node(begin, archive, scheduler, tmp_path):
    process, directory = begin(scheduler, archive)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0
    adapted, started = (tmp_path / "calls").read_text().splitlines()
    assert adapted == f"unpacked {directory}/bin/conda-unpack"
    assert started == f"{directory}/bin/mpidl 700"
    assert not directory.exists()


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="Debian's squashfs-tools")
def test_an_environment_may_be_an_image_of_a_file_system(begin, environment, tmp_path):
    subprocess.run(["mksquashfs", environment, tmp_path / "env.sqfs", "-quiet", "-no-progress"], check=True)
    process, directory = begin("slurm", tmp_path / "env.sqfs")
    assert process.communicate(timeout=60)[1] == ""
    assert f"{directory}/bin/mpidl 700" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize("scheduler", COMMANDS)
def test_an_environment_that_cannot_be_unpacked_is_a_line_that_names_the_node(begin, archive, scheduler, tmp_path):
    (tmp_path / "empty").mkdir()
    with tarfile.open(tmp_path / "other.tar", "w") as file:
        file.add(tmp_path / "empty", "other")
    (tmp_path / "bad.tar").write_text("no archive")
    for name, line in {
        "gone.tar": "no such file, or no permission to read it",
        "other.tar": "has no bin, expected an archive of conda-pack or venv-pack",
        "bad.tar": "tar: This does not look like a tar archive",
    }.items():
        process, directory = begin(scheduler, tmp_path / name)
        (said,) = process.communicate(timeout=60)[1].splitlines()
        assert said.startswith(f"mpidl: {socket.gethostname()}: --env {tmp_path / name}: ")
        assert said.endswith(line)
        assert process.returncode == 1
        assert not directory.exists()
    assert not (tmp_path / "calls").exists()


def test_a_directory_of_someone_else_is_not_used(begin, archive, tmp_path):
    (tmp_path / "own").mkdir()
    number = f"{os.getpid()}-of-someone-else"
    directory = Path(f"/dev/shm/mpidl-{number}")
    directory.symlink_to(tmp_path / "own")
    try:
        process, _ = begin("slurm", archive, number)
        assert f"can't make {directory}" in process.communicate(timeout=60)[1]
        assert not (tmp_path / "calls").exists()
    finally:
        directory.unlink(missing_ok=True)


@pytest.mark.parametrize("scheduler", COMMANDS)
def test_a_job_that_is_cancelled_removes_the_environment_once_its_ranks_have_saved(begin, archive, scheduler, tmp_path):
    process, directory = begin(scheduler, archive, WAITS="1")
    _until((tmp_path / "ready").exists)
    (tmp_path / "cancelled").touch()  # Nothing can be started any more.
    subprocess.run(["pkill", "-TERM", "-s", str(process.pid)], check=True)
    process.communicate(timeout=60)
    _until(lambda: not directory.exists())
    assert (tmp_path / "calls").read_text().splitlines()[-1] == "saved"


def _until(true):
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
