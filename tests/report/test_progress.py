"""What a person sees of a run, on a terminal and in a log, and of a job that `mpidl train -n` has started."""

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

from mpidl.engines.totals import Spent, Totals
from mpidl.launch import marks, output
from mpidl.report.lines import Title
from mpidl.report.progress import ForwardedProgress, LogProgress, ProgressScreen
from mpidl.report.rates import Rates

SHOW = """
from mpidl.report.lines import Title
from mpidl.report.progress import choose
progress = choose(Title("runs/x: 9,610 parameters (38.4 kB)", 2.0, 500))
for step in range(1, 11):
    progress.update({
        "time": 2.0 * step, "epoch": step / 5, "train_loss": 1 / step,
        "test_loss": None if step < 5 else 0.5, "test_accuracy": None if step < 5 else 0.875,
        "samples_per_second": 50.0, "staleness": {"mean": 1.25, "p50": 1, "p99": 3, "max": 7}, "server_load": 0.34,
    }, evaluated=step == 5)
progress.close()
"""
TITLE = Title("runs/x: 9,610 parameters (38.4 kB)", 2.0, 500)


def report(**more):
    return {"time": 4.0, "epoch": 0.5} | more


def on_terminal(terminal, title, figures):
    """Return what a terminal shows of a run's figures after an evaluation."""
    code = (
        "from mpidl.report.lines import Title\nfrom mpidl.report.progress import TerminalProgress\n"
        f"progress = TerminalProgress({title!r})\n"
        f"progress.update({figures!r}, evaluated=True)\n"
        "progress.close()\n"
    )
    return terminal([sys.executable, "-c", code], 132)


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
        figures = " ".join(bars[-1].rpartition("| ")[2].split())
        servers = "staleness 1.2, server busy 34 %" if columns >= 132 else "staleness 1.2"
        assert figures.removeprefix("epoch 2.0 ") == f"50/s loss 0.1 accuracy 0.875 {servers} 0:00 left"
        assert "0:18 left" in bars[1]
    assert shown[0] == TITLE.text
    (evaluation,) = [line for line in shown if line.startswith("epoch")]
    whole = "epoch   1.0  test accuracy 0.8750, loss 0.5  train loss 0.2  after 0:10"
    assert whole.startswith(evaluation)
    assert len(evaluation) < columns
    assert columns < 80 or evaluation == whole


def test_a_log_has_a_line_for_each_report(capsys):
    progress = LogProgress(TITLE)
    progress.update(report())
    known = report(
        train_loss=0.5,
        test_loss=0.25,
        test_accuracy=0.875,
        samples_per_second=130_000.4,
        staleness={"mean": 1.25, "p50": 1, "p99": 3, "max": 7},
        server_load=0.345,
    )
    progress.update(known)
    progress.update(known, evaluated=True)
    progress.update(report(time=4.0, epoch=2.0, train_loss=float("nan"), samples_per_second=None))
    progress.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    clocks, texts = zip(*(line.split("  ", 1) for line in captured.err.splitlines()), strict=True)
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", clock) for clock in clocks)
    assert texts == (
        TITLE.text,
        " 25%  epoch 0.5",
        " 25%  epoch 0.5  130000/s  loss 0.5  staleness 1.2  0:00 left",
        " 25%  epoch 0.5  130000/s  loss 0.5, test 0.25  accuracy 0.8750",
        "100%  epoch 2.0  loss nan  0:00 left",
    )


@pytest.mark.parametrize("split", ["test", "validation"])
def test_figures_are_of_what_is_evaluated(capsys, terminal, split):
    figures = {"train_loss": 0.5, "samples_per_second": 40.0} | {f"{split}_loss": 0.25, f"{split}_accuracy": 0.875}
    LogProgress(Title("runs/x", 2.0, 500, split=split)).update(report(**figures), evaluated=True)
    line = capsys.readouterr().err.splitlines()[-1]
    assert " ".join(line.split()[1:]) == f"25% epoch 0.5 40/s loss 0.5, {split} 0.25 accuracy 0.8750"
    shown = on_terminal(terminal, Title("runs/x", 2.0, 500, "accuracy", split), report(**figures))
    assert f"{split} accuracy 0.8750, loss 0.25  train loss 0.5" in shown
    assert "  accuracy 0.875" in shown


def test_the_rate_gives_way_to_the_accuracy(capsys):
    figures = {
        "train_loss": 0.123456,
        "samples_per_second": 123456.0,
        "validation_loss": 0.0234567,
        "validation_accuracy": 0.5,
    }
    LogProgress(Title("runs/x", 2.0, 500, "exact match", "validation")).update(report(**figures), evaluated=True)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith("exact match 0.5000")
    assert "/s" not in line
    assert len(line) < 80


FIGURES = st.fixed_dictionaries(
    {
        "time": st.floats(0, 1e7),
        "epoch": st.floats(0, 1e4),
        "train_loss": st.floats(0, 1e5),
        "test_loss": st.none() | st.floats(0, 1e5),
        "test_accuracy": st.none() | st.floats(0, 1),
        "validation_loss": st.none() | st.floats(0, 1e5),
        "validation_accuracy": st.none() | st.floats(0, 1),
        "samples_per_second": st.none() | st.floats(1, 1e8),
        "staleness": st.none() | st.fixed_dictionaries({"mean": st.floats(0, 1e4)}),
        "server_load": st.none() | st.floats(0, 1),
    }
)


@given(FIGURES, st.sampled_from(["accuracy", "exact match"]), st.booleans(), st.sampled_from(["test", "validation"]))
def test_no_line_of_a_log_wraps(figures, accuracy, evaluated, split):
    lines = []
    progress = LogProgress(Title("runs/x: 1 parameter (4 B)", 1e4, 60_000, accuracy, split))
    progress.write = lines.append
    progress.update(figures, evaluated)
    assert len(lines[0]) < 80
    assert f"epoch {figures['epoch']:.1f}" in lines[0]
    assert f"{figures['epoch'] / 1e4:.0%}" in lines[0]


@given(st.lists(st.tuples(st.floats(0.001, 100), st.floats(1, 1e6)), min_size=1))
def test_the_time_left_follows_the_rate(intervals):
    samples, lines = 10**10, []
    progress = LogProgress(Title("runs/x", 1.0, samples))
    progress.write = lines.append

    def average(now, rate, last=False):
        progress.update({"time": now, "epoch": 0.0, "samples_per_second": rate}, last=last)
        hours, minutes, seconds = map(int, re.search(r"(\d+):(\d\d):(\d\d) left", lines[-1]).groups())
        return samples / (3600 * hours + 60 * minutes + seconds)

    now = 0.0
    for seconds, rate in intervals:
        now += seconds
        found = average(now, rate)
    rates = [rate for _, rate in intervals]
    assert min(rates) * 0.999 <= found <= max(rates) * 1.001
    assert average(now + 1000, 5.0) == pytest.approx(5.0)
    assert average(now + 1000, 7.0, last=True) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, "0:59"), (3600, "1:00:00"), (3599.7, "1:00:00"), (90061, "25:01:01")]
)
def test_long_times(capsys, seconds, text):
    progress = LogProgress(Title("runs/x", 10.0, 10**5))
    progress.update(report(epoch=9.99, samples_per_second=1000 / seconds))
    assert capsys.readouterr().err.rstrip().endswith(f"  {text} left")


def log_of(capsys, title, *updates):
    """Return what a log shows of reports, without the time of day, each line's words."""
    progress = LogProgress(title)
    for figures, evaluated in updates:
        progress.update(figures, evaluated)
    shown = capsys.readouterr().err.splitlines()[1:]
    assert all(len(line) < 80 for line in shown)
    return [" ".join(line[10:].split()) for line in shown]


@pytest.mark.parametrize(
    ("loss", "text"),
    [(1.6e-6, "1.6e-06"), (0.0, "0"), (0.25, "0.25"), (123.456, "123.5"), (54321.0, "5.432e+04"), (2.0, "2")],
)
def test_losses_of_any_magnitude(capsys, loss, text):
    figures = report(train_loss=loss, test_loss=loss)
    shown = log_of(capsys, TITLE, (figures, False), (figures, True))
    assert shown == [f"25% epoch 0.5 loss {text}", f"25% epoch 0.5 loss {text}, test {text}"]


METRICS = {"mean_squared_error": 1.5e-7, "f1": 0.25, "my_functions:distance": 12.0}


def test_own_metrics_are_in_the_log_whole(capsys):
    title = Title("runs/x", 2.0, 500, split="validation")
    figures = report(train_loss=0.5, validation_loss=0.25, validation_f1=0.125, samples_per_second=40.0)
    assert log_of(capsys, title, (figures, False), (figures, True)) == [
        "25% epoch 0.5 40/s loss 0.5 f1 0.125 0:19 left",
        "25% epoch 0.5 40/s loss 0.5, validation 0.25 f1 0.125",
    ]
    title = Title("runs/x", 2.0, 500)
    figures = report(train_loss=0.5, test_loss=0.25, test_accuracy=0.75)
    figures |= {f"test_{name}": value for name, value in METRICS.items()}
    figures |= {f"test_other_{number}": 1.0 for number in range(4)} | {"test_other_4": None, "validation_f1": 0.5}
    first, *others = log_of(capsys, title, (figures, True))
    assert first == "25% epoch 0.5 loss 0.5, test 0.25 accuracy 0.7500"
    shown = "mean squared error 1.5e-07 f1 0.25 my functions:distance 12 other 0 1 other 1 1 other 2 1 other 3 1"
    assert " ".join(others) == shown


def test_own_metrics_are_on_the_terminal(terminal):
    figures = report(test_accuracy=0.75, test_f1=0.125, train_loss=0.5)
    shown = on_terminal(terminal, Title("runs/x", 2.0, 500), figures)
    assert "epoch   0.5  test accuracy 0.7500  train loss 0.5  after 0:04  f1 0.125" in shown
    assert "accuracy 0.750  f1 0.125" in shown


def test_iterations_instead_of_epochs(capsys, terminal):
    title = Title("runs/x", 2.0, 500, iterates=True)
    iteration = {"number": 12, "objective": 1.6e-6, "gradient_norm": 0.012345, "total_evaluations": 34}
    figures = report(train_loss=0.5, test_loss=0.25, test_accuracy=0.75, samples_per_second=40.0, iteration=iteration)
    first = report(staleness={"mean": 0.0}, samples_per_second=40.0, server_load=0.5)
    assert log_of(capsys, title, (first, False), (figures, False), (figures, True)) == [
        "iteration 0 40/s 0:19 left",
        "iteration 12, 34 evaluations objective 1.6e-06, gradient norm 0.01235",
        "iteration 12 40/s objective 1.6e-06, test 0.25 accuracy 0.7500",
    ]
    shown = on_terminal(terminal, title, figures)
    assert "iteration 12  test accuracy 0.7500, loss 0.25  objective 1.6e-06  after 0:04" in shown
    assert "iteration 12, 34 evaluations  40/s  objective 1.6e-06, gradient norm 0.01235  accuracy 0.750" in shown
    assert "epoch" not in shown


SAMPLES, BATCH = 1000, 64


def totals(now, batch):
    done = int(now / batch) * BATCH
    return Totals(now=1000.0 + now, samples=done, first_fetch=1000.0, spent=Spent(busy_seconds=[now / 10]))


@pytest.mark.parametrize("batch", [0.1, 0.7, 1.5, 4.0, 25.0])
def test_no_line_says_that_a_run_stands_still_and_the_time_left_is_steady(capfd, batch):
    epochs = 400 / batch * BATCH / SAMPLES
    rates, log = Rates(0, 0.0, report=10.0), LogProgress(Title("x", epochs, SAMPLES), begun=True)
    for tenth in range(1, 3000):
        found = totals(tenth / 10, batch)
        rates.measure(found)
        if tenth % 100 == 0:
            log.update({"time": tenth / 10, "epoch": found.samples / SAMPLES, **rates.values})
    lines = capfd.readouterr().err.splitlines()
    speeds = [float(each) for line in lines for each in re.findall(r"([\d.]+)/s", line)]
    assert len(speeds) >= len(lines) - 2 * batch / 10 - 1
    assert speeds == pytest.approx([BATCH / batch] * len(speeds), rel=0.25)
    left = [60 * int(minutes) + int(seconds) for minutes, seconds in re.findall(r"(\d+):(\d\d) left", "\n".join(lines))]
    expected = [400 - 10 * (number + len(lines) - len(left) + 1) for number in range(len(left))]
    assert left == pytest.approx(expected, rel=0.25, abs=1.1 * batch + 10)


def test_a_run_that_stands_still_gets_slower():
    rates = Rates(0, 0.0)
    rates.measure(totals(10.0, 1.0))
    found = [rates.values["samples_per_second"]]
    for now in (12.0, 30.0, 100.0):
        rates.measure(Totals(now=1000.0 + now, samples=10 * BATCH, first_fetch=1000.0, spent=Spent(busy_seconds=[1.0])))
        found.append(rates.values["samples_per_second"])
    assert found == pytest.approx([64, 64, 32, 640 / 90])
    again = Rates(0, 0.0)
    again.load(rates.state())
    assert again.values == rates.values


def test_speeds_below_one_have_digits(capfd):
    LogProgress(Title("x", 1.0, 10), begun=True).update({"time": 1.0, "epoch": 0.1, "samples_per_second": 0.25})
    assert " 0.25/s " in capfd.readouterr().err


REPORT = {"time": 1.0, "epoch": 1.0, "train_loss": float("nan"), "test_accuracy": 0.5, "staleness": {"mean": 1.0}}


@pytest.fixture
def told(monkeypatch):
    """What a rank tells, beginning with a run's title."""
    words = []
    monkeypatch.setattr(marks, "tell", lambda word, then: words.append(word))
    relay = ForwardedProgress(Title("runs/ü: 1 parameter (4 B)", 2.0, 100))
    relay.write("a line")
    relay.update(REPORT, evaluated=True)
    relay.close()
    return words


def test_without_progress_everything_is_as_it_comes(capfd):
    screen = ProgressScreen()
    for text in (b"half ", b"a line\n", b"\r 3%", b"end"):
        screen.write(text)
    screen.close()
    assert capfd.readouterr().err == "half a line\n\r 3%end"


def test_a_rank_s_progress_is_drawn_and_other_lines_go_above(capfd, told):
    screen = ProgressScreen()
    begin, line, update, end = (text.removeprefix(f"{marks.PROGRESS} ") for text in told)
    screen.write(b"before\n")
    screen.hear(begin)
    screen.hear(line)
    screen.write(b"a warn")
    screen.hear(update)
    screen.write(b"ing\n")
    screen.hear(end)
    screen.write(b"after\n")
    shown = [text.strip() for text in re.split(r"[\r\n]+", capfd.readouterr().err) if text.strip()]
    lines = [text for text in shown if "%|" not in text]
    assert lines == [
        "before", "runs/ü: 1 parameter (4 B)", "a line", "epoch   1.0  test accuracy 0.5000  after 0:01",
        "a warning", "after",
    ]  # fmt: skip
    assert shown.index("a line") < next(i for i, text in enumerate(shown) if text.startswith("50%|"))


def test_a_job_that_ends_without_a_word_leaves_the_bar_and_its_last_line(capfd, told):
    screen = ProgressScreen()
    screen.hear(told[0].removeprefix(f"{marks.PROGRESS} "))
    screen.write(b"no line end")
    screen.close()
    assert re.split(r"[\r\n]+", capfd.readouterr().err)[-1] == "no line end"


def test_what_is_told_passes_through_the_marks(told, monkeypatch):
    told_anew = []
    monkeypatch.undo()
    monkeypatch.setenv(marks.VARIABLE, "1")
    read, write = os.pipe()
    monkeypatch.setattr(output, "STDERR", write)
    for text in told:
        marks.tell(text)
    os.close(write)
    assert list(marks.listen([os.read(read, 1 << 16)], told_anew.append)) == []
    assert told_anew == told
