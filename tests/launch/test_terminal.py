"""What a person at a terminal of 80 columns sees of a job, with the real launcher."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import time

import pytest

from mpidl.launch.command import command

JOB = """
[run]
epochs = {epochs}
report = 0.2
[data]
source = "digits"
batch = 32
[[model.layer]]
type = "dense"
units = 10
[debug]
gradient_seconds = 0.02
"""
CTRL_C = b"\x03"


@pytest.fixture
def terminal(bare_environment, tmp_path):
    """Runs a command on a terminal of its own; `press` takes what has been shown and returns what is typed then.

    Returns what was shown, as pairs of a time and a text, and the exit code.
    """

    def run(words, press=lambda shown: b"", **variables):
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = subprocess.Popen(
            words,
            cwd=tmp_path,
            env=bare_environment | variables,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        shown, typed = [], False
        while True:
            try:
                text = os.read(master, 65536)
            except OSError:  # all who could write are gone
                break
            shown.append((time.monotonic(), text.decode(errors="replace")))
            if not typed and (keys := press("".join(text for _, text in shown))):
                typed = True
                os.write(master, keys)
        os.close(master)
        return shown, process.wait(timeout=60)

    return run


def job(tmp_path, epochs):
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(epochs=epochs))
    return path.name


def lines(text):
    """Return all that has stood on a line, also if it was written over."""
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_the_bar_of_a_job_moves_and_nothing_wraps(terminal, tmp_path):
    """45 batches an epoch, on 2 workers of 0.02 s a batch: 2.3 s."""
    shown, code = terminal([sys.executable, "-P", "-m", "mpidl", "train", job(tmp_path, 5), "-n", "4"])
    text = "".join(text for _, text in shown)
    assert code == 0, text
    assert max(len(line) for line in lines(text)) < 80
    bars = [(at, found) for at, part in shown for found in re.findall(r"(\d+)%\|", part)]
    assert len({percent for _, percent in bars}) >= 4
    assert [int(percent) for _, percent in bars] == sorted(int(percent) for _, percent in bars)
    assert bars[-1][1] == "100"
    first = next(at for at, percent in bars if percent != "0")
    assert bars[-1][0] - first > 0.5
    assert lines(text)[-1] == "runs/job: 5 epochs done"
    assert "runs/job: 650 parameters" in text


def test_ctrl_c_under_a_plain_mpirun_says_what_was_saved(terminal, tmp_path):
    words, environment = command(4, ["-P", "-m", "mpidl", "train", job(tmp_path, 10_000)])
    own = {
        name: value for name, value in environment.items() if name.startswith(("OMPI_ALLOW", "PRTE_ALLOW", "OMPI_MCA"))
    }
    shown, _ = terminal(words, lambda text: CTRL_C if "loss" in text else b"", **own)
    text = "".join(text for _, text in shown)
    found = lines(text.partition("^C")[2])
    assert re.fullmatch(r"mpidl: stopping; saved so far: runs/job, step \d+", found[0]), text
    steps = [int(path.name) for path in (tmp_path / "runs" / "job" / "checkpoints").glob("[0-9]*")]
    named = [int(step) for line in found for step in re.findall(r"saved.*: runs/job, step (\d+)", line)]
    # mpirun may kill the job between a checkpoint and the line that names it.
    assert max(named) in steps, text
    if len(named) > 1:
        assert found[1].endswith("; continue with `mpidl train --resume runs/job -n 4`")
