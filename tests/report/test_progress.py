"""What a person sees of a run, on a terminal and in a log."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.report.progress import Progress, on_terminal

SHOW = """
import sys
from mpidl.report.progress import Progress, on_terminal
if not on_terminal():
    sys.exit("no terminal")
progress = Progress(1000, True, "9,610 parameters (38.4 kB)")
for step in range(1, 11):
    progress.update({
        "time": 2.0 * step, "samples": 100 * step, "epoch": step / 5, "train_loss": 1 / step,
        "test_loss": None if step < 5 else 0.5, "test_accuracy": None if step < 5 else 0.875,
        "samples_per_second": 50.0, "staleness": {"mean": 1.25, "p50": 1, "p99": 3, "max": 7}, "server_load": 0.34,
    })
progress.close()
"""


def report(**more):
    return {"time": 4.0, "samples": 250, "epoch": 0.5} | more


@pytest.fixture
def terminal():
    """Runs a command whose stderr is a terminal of some width; returns what it shows there."""

    def run(command, columns):
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 0, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name != "MPIDL_TERMINAL"}
        process = subprocess.Popen(command, stderr=slave, stdin=subprocess.DEVNULL, env=kept)
        os.close(slave)
        shown = b""
        while True:
            try:
                shown += os.read(master, 65536)
            except OSError:  # all who could write are gone
                break
        os.close(master)
        assert process.wait() == 0
        return shown.decode()

    return run


@pytest.mark.parametrize("columns", [132, 80, 60, 40, 20])
def test_the_bar_fits_its_terminal(terminal, columns):
    shown = re.split(r"[\r\n]+", terminal([sys.executable, "-c", SHOW], columns))
    bars = [line for line in shown if "%|" in line]
    assert all(len(line) < columns for line in bars)
    assert bars[0].startswith("  0%|")
    assert "starting" in bars[0]
    assert bars[-1].startswith("100%|")
    assert all(len(line.split("|")[1]) >= 12 for line in bars[1:])
    if columns >= 40:
        assert all(line.endswith(" left") for line in bars[1:])
    if columns >= 80:
        figures = bars[-1].rpartition("| ")[2].split()
        assert " ".join(figures[-11:]) == "50/s loss 0.100 acc 0.875 stale 1.2 load 34% 0:00 left"
        assert "0:18 left" in bars[1]
    assert shown[0] == "9,610 parameters (38.4 kB)"
    (evaluation,) = [line for line in shown if line.startswith("epoch")]
    assert evaluation == "epoch   1.0  test accuracy 0.8750  test loss 0.5000  train loss 0.2000  after 0:10"


def test_the_terminal_of_a_launcher(terminal, tmp_path):
    launcher = tmp_path / "mpirun"
    launcher.write_text('#!/bin/sh\n"$@" 2>&1 >/dev/null | cat >&2\n')
    launcher.chmod(0o755)
    assert "100%|" in terminal([str(launcher), sys.executable, "-c", SHOW], 100)
    other = launcher.rename(tmp_path / "other")
    assert terminal([str(other), sys.executable, "-c", SHOW], 100).strip() == "no terminal"


def test_the_terminal_that_the_command_names(monkeypatch):
    monkeypatch.setenv("MPIDL_TERMINAL", "77")
    assert on_terminal()


def test_a_log_has_a_line_for_each_report(capsys):
    progress = Progress(1000, False, "9,610 parameters (38.4 kB)")
    progress.update(report())
    progress.update(
        report(
            train_loss=0.5,
            test_loss=0.25,
            test_accuracy=0.875,
            samples_per_second=1000.4,
            staleness={"mean": 1.25, "p50": 1, "p99": 3, "max": 7},
            server_load=0.345,
        )
    )
    progress.update(report(time=4.0, samples=1000, epoch=2.0, train_loss=float("nan"), samples_per_second=None))
    progress.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    clocks, texts = zip(*(line.split("  ", 1) for line in captured.err.splitlines()), strict=True)
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", clock) for clock in clocks)
    assert texts == (
        "9,610 parameters (38.4 kB)",
        "epoch 0.50   25%",
        "epoch 0.50   25%  1000 samples/s  train loss 0.5000  test loss 0.2500  test accuracy 0.8750"
        "  staleness 1.25 (p99 3, max 7)  server load 34%  0:01 left",
        "epoch 2.00  100%  train loss nan  0:00 left",
    )


@given(st.lists(st.tuples(st.floats(0.001, 100), st.floats(1, 1e6)), min_size=1))
def test_the_time_left_follows_the_rate(intervals):
    progress = Progress(10**9, False, "9,610 parameters (38.4 kB)")
    now = 0.0
    for seconds, rate in intervals:
        now += seconds
        progress._average(report(time=now, samples_per_second=rate))
    rates = [rate for _, rate in intervals]
    assert min(rates) * 0.999 <= progress._rate <= max(rates) * 1.001
    progress._average(report(time=now + 1000, samples_per_second=5.0))
    assert progress._rate == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "0:59"), (3600, "1:00:00"), (3599.7, "1:00:00"), (90061, "25:01:01")]
)
def test_long_times(capsys, seconds, text):
    progress = Progress(10**6, False, "9,610 parameters (38.4 kB)")
    progress.update(report(samples=10**6 - 1000, samples_per_second=1000 / seconds))
    assert capsys.readouterr().err.rstrip().endswith(f"  {text} left")
