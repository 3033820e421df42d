"""Signals that ask a job to stop, at each of its phases: it saves, ends with 75, and can be resumed."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from jobs_apart import EPOCHS, SAMPLES, assert_exact, ended, parent, processes_of_ranks, trains, wait_for

RANKS = 3

#: Runs when Python starts. Ranks stay for a while at a phase that the environment names, and say that they are there.
PAUSES = """
import atexit, os, sys, time

PHASE, RANK = os.environ.get("PAUSE"), os.environ.get("OMPI_COMM_WORLD_RANK")

def pause():
    open(f"at-{PHASE}-{RANK}", "w").close()
    time.sleep(1.0)

class At:
    def find_spec(self, name, path=None, target=None):
        if name == MODULES.get(PHASE):
            sys.meta_path.remove(self)
            pause()

#: Imported before NumPy, and after MPI_Init.
MODULES = {"importing": "mpidl.cli", "initialised": "mpidl.runs.ranks"}
if RANK is not None:
    sys.meta_path.insert(0, At())
    if PHASE == "interpreter":
        pause()
    if PHASE == "ending":
        atexit.register(pause)
"""


@pytest.fixture
def paused(start, job, tmp_path):
    """Start the job so that its ranks pause at a phase."""
    (tmp_path / "sitecustomize.py").write_text(PAUSES)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))

    def run(phase, **variables):
        return start("train", job, "-n", RANKS, "--json", PAUSE=phase, PYTHONPATH=path, **variables)

    return run


@pytest.fixture
def reached(tmp_path):
    """Wait until all ranks are at the phase where they pause."""
    return lambda: wait_for(lambda: len(list(tmp_path.glob("at-*"))) == RANKS)


def finish(process, code=75):
    """Wait for a job's end with an exit code; return its summary, if it printed one, and its stderr."""
    output, errors = ended(process, code)
    return json.loads(output.splitlines()[-1]) if output else None, errors


def holds(process):
    """Tell whether a process has come so far that it holds signals."""
    (mask,) = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("SigBlk:")]
    return int(mask.split()[1], 16) >> (signal.SIGTERM - 1) & 1


def assert_resumes(start, tmp_path):
    """Check that the run goes on, and that in the end no sample is lost or doubled."""
    ended(start("train", "--resume", "runs/tally", "--json"))
    assert_exact(tmp_path)


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        pytest.param("interpreter", signal.SIGUSR1, marks=pytest.mark.long),
        ("importing", signal.SIGHUP),
        ("initialised", signal.SIGINT),
    ],
)
def test_while_ranks_start(start, paused, reached, tmp_path, phase, number):
    process = paused(phase)
    reached()
    process.send_signal(number)
    summary, _ = finish(process)
    assert summary["interrupted"]
    assert summary["samples"] < EPOCHS * SAMPLES
    assert_resumes(start, tmp_path)


def test_right_after_the_start_of_the_launcher(start, job, tmp_path):
    process = start("train", job, "-n", RANKS, "--json")
    wait_for(lambda: holds(process.pid))
    process.terminate()
    summary, _ = finish(process)
    assert (summary, processes_of_ranks(tmp_path)) == (None, {})


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT])
def test_while_one_process_alone_starts(start, job, number):
    process = start("train", job, "--json")
    wait_for(lambda: holds(process.pid))
    process.send_signal(number)
    finish(process)


@pytest.mark.parametrize(
    ("phase", "number"),
    [pytest.param("importing", signal.SIGTERM, marks=pytest.mark.long), ("initialised", signal.SIGINT)],
)
def test_a_signal_to_a_rank_that_starts(paused, reached, tmp_path, phase, number):
    process = paused(phase)
    reached()
    os.kill(processes_of_ranks(tmp_path)[1], number)  # A worker alone would leave the run after SIGTERM.
    summary, _ = finish(process)
    assert summary["interrupted"]


def test_a_rank_that_dies_before_it_can_hold_a_signal_loses_nothing(paused, reached, tmp_path):
    process = paused("interpreter")
    reached()
    os.kill(processes_of_ranks(tmp_path)[1], signal.SIGTERM)
    summary, errors = finish(process)
    assert "nothing is lost" in errors
    assert (summary, trains(tmp_path)) == (None, False)


@pytest.mark.parametrize("numbers", [pytest.param([signal.SIGHUP], marks=pytest.mark.long), [signal.SIGINT] * 2])
def test_after_all_is_written(paused, reached, tmp_path, numbers):
    process = paused("ending")
    reached()
    for number in numbers:
        for each in (process.pid, *processes_of_ranks(tmp_path).values()):
            os.kill(each, number)
        time.sleep(0.1)
    summary, errors = finish(process, 0)
    assert not summary["interrupted"]
    assert "saving" not in errors


@pytest.mark.long
@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGHUP)])
def test_two_signals(start, job, tmp_path, numbers):
    process = start("train", job, "-n", RANKS, "--json", TALLY_SECONDS="0.02")
    wait_for(lambda: trains(tmp_path))
    for number in numbers:
        time.sleep(0.1)
        for each in (process.pid, *processes_of_ranks(tmp_path).values()):
            os.kill(each, number)
    _, errors = finish(process)
    assert "without saving" not in errors
    assert_resumes(start, tmp_path)


def test_a_second_signal_after_the_first_has_saved(start, paused, reached, tmp_path):
    process = paused("ending", TALLY_SECONDS="0.02")
    wait_for(lambda: trains(tmp_path))
    process.send_signal(signal.SIGINT)
    reached()
    for each in (process.pid, *processes_of_ranks(tmp_path).values()):
        os.kill(each, signal.SIGTERM)
    summary, errors = finish(process)
    assert summary["interrupted"]
    assert "without saving" not in errors
    assert_resumes(start, tmp_path)


def test_a_signal_to_every_process_of_the_job(start, job, tmp_path):
    """Schedulers send it to all; mpirun does not kill the ranks because of it."""
    process = start("train", job, "-n", RANKS, "--json", TALLY_SECONDS="0.02")
    wait_for(lambda: trains(tmp_path))
    ranks = processes_of_ranks(tmp_path).values()
    keepers = {parent(rank) for rank in ranks}
    (mpirun,) = {parent(keeper) for keeper in keepers}
    for each in (mpirun, process.pid, *keepers, *ranks):
        os.kill(each, signal.SIGTERM)
    finish(process)
    assert_resumes(start, tmp_path)
