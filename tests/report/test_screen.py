"""What `mpidl train -n` shows of a job's stderr, and of the progress that a rank tells it."""

import os
import re

import pytest

from mpidl.launch import marks, output
from mpidl.report.progress import ForwardedProgress, Title
from mpidl.report.screen import Screen

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
    screen = Screen()
    for text in (b"half ", b"a line\n", b"\r 3%", b"end"):
        screen.write(text)
    screen.close()
    assert capfd.readouterr().err == "half a line\n\r 3%end"


def test_a_rank_s_progress_is_drawn_and_other_lines_go_above(capfd, told):
    screen = Screen()
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
    screen = Screen()
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
