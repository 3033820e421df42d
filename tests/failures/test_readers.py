"""Who reads a job's output goes away: it saves, ends with 75 and without a traceback, and can be resumed."""

import fcntl
import json
import os
import pty
import subprocess
import sys
import termios

import pytest
from jobs_apart import EPOCHS, SAMPLES, processes_of_ranks, summary_of, trains, wait_for

SETTINGS = ("--set", "run.report=0.1")


def assert_saved(start, tmp_path):
    """Check that the run has stopped, and goes on."""
    run = tmp_path / "runs" / "tally"
    assert json.loads((run / "summary.json").read_text())["interrupted"]
    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert "failure" not in events
    assert processes_of_ranks(tmp_path) == {}
    assert summary_of(start("train", "--resume", run, "--json"))["samples"] == EPOCHS * SAMPLES


@pytest.mark.parametrize("ranks", [pytest.param([], marks=pytest.mark.long), ["-n", 3]])
def test_a_pipe_without_a_reader(job, start, tmp_path, ranks):
    """As in ``mpidl train ... 2>&1 | head -1``."""
    process = start("train", job, *ranks, *SETTINGS, TALLY_SECONDS="0.03")
    process.stderr.readline()
    process.stderr.close()
    process.stdout.close()
    assert process.wait(timeout=300) == 75
    assert_saved(start, tmp_path)


@pytest.mark.parametrize("ranks", [[], pytest.param(["-n", 3], marks=pytest.mark.long)])
def test_a_terminal_that_is_closed(job, start, tmp_path, bare_environment, ranks):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mpidl", "train", job, *map(str, ranks), *SETTINGS],
        cwd=tmp_path, env=bare_environment | {"TALLY_SECONDS": "0.03"}, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    try:
        wait_for(lambda: trains(tmp_path))
        os.close(ours)
        assert process.wait(timeout=300) == 75
    finally:
        process.kill()
    assert_saved(start, tmp_path)


def test_a_summary_that_nobody_reads(job, start, tmp_path):
    process = start("train", job)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=300) == 0, errors
    assert "Error" not in errors
