"""Numbers, tables and the results of commands as plain text."""

import pytest

from mpidl.report import text
from mpidl.report.text import duration, quantity, size, titled


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (167_108_608, "167 MB"),
        (999_499_999, "999 MB"),
        (6.8e9, "6.8 GB"),
        (1e15, "1 PB"),
        (2.5e19, "2.5e+04 PB"),
    ],
)
def test_quantities(value, text):
    assert quantity(value, "B") == text


def test_a_quantity_without_unit():
    assert (quantity(12, ""), quantity(83.5e6, "")) == ("12", "83.5 M")


def test_sizes():
    assert size(41_777_152, 167_108_608) == "41,777,152 parameters (167 MB)"
    assert size(1, 4) == "1 parameter (4 B)"


def test_tables():
    rows = [{"a": "aaa", "bb": "", "none": "", "c": "22"}, {"a": "", "bb": "x", "none": "", "c": "3"}]
    assert titled(rows, left=2) == ["a    bb   c", "aaa      22", "     x    3"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (75.4, "75.4 s"),
        (300, "5 min"),
        (7000, "117 min"),
        (7200, "2 h"),
        (1e6, "278 h"),
        (1.0, "1 s"),
        (0.01234, "12.3 ms"),
        (2e-6, "2 us"),
        (3.45e-8, "34.5 ns"),
        (0.0, "0 ns"),
    ],
)
def test_a_duration(seconds, text):
    assert duration(seconds) == text


QUALITY = {
    "train_loss": 0.5, "validation_loss": 0.25, "validation_accuracy": 0.75, "validation_f1": None, "test_loss": 0.375,
    "test_accuracy": 0.625, "test_f1": 0.5, "accuracy_name": "exact match",
}  # fmt: skip


def summary(**more):
    return QUALITY | {
        "algorithm": "downpour", "servers": 1, "replicas": 2, "epochs": 2.5, "samples": 100, "seconds": 2.0,
        "samples_per_second": 50.0, "staleness": {"mean": 0.5, "p50": 0, "p99": 3, "max": 4}, "run_dir": "runs/x",
    } | more  # fmt: skip


def test_a_summary_tells_of_all_data_and_of_the_end():
    ended = {"stopped": "in 2 epochs ...", "best_step": 40, "best_epoch": 1.5, "best_validation_loss": 0.125}
    assert text.summary(summary(**ended)).splitlines()[:5] == [
        "test exact match 0.6250, test loss 0.375, train loss 0.5",
        "test f1 0.5",
        "validation exact match 0.7500, validation loss 0.25",
        "stopped early: in 2 epochs ...",
        "best validation loss 0.125 after 1.5 epochs: step 40",
    ]


def test_a_summary_of_a_run_without_them_says_nothing_of_them():
    before = {name: value for name, value in summary(best_step=None, stopped=None).items() if "validation" not in name}
    shown = text.summary(before | {"test_f1": None})
    assert shown.splitlines()[:2] == [
        "test exact match 0.6250, test loss 0.375, train loss 0.5",
        "100 samples in 2.0 s, 50 samples/s",
    ]


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ({"dropped": 0}, ""),
        ({"dropped": 3, "staleness_histogram": [6, 5, 1]}, ", 25% of pushes dropped"),
        ({"gradients_stopped": 1, "seconds_saved": 0.0}, ", 1 gradient stopped"),
        ({"gradients_stopped": 1200, "seconds_saved": 0.02}, ", 1,200 gradients stopped, 20 ms saved"),
    ],
)
def test_a_summary_says_what_was_not_used(more, end):
    line = text.summary(summary(**more)).splitlines()[-2]
    assert line == f"downpour: 1 server, 2 replicas, staleness mean 0.50, p50 0, p99 3, max 4{end}"


@pytest.mark.parametrize(
    ("failures", "recoveries", "line"),
    [(1, 1, "1 failure, 1 recovery"), (3, 2, "3 failures, 2 recoveries"), (1, 0, "1 failure, 0 recoveries")],
)
def test_a_summary_counts_failures_and_recoveries_of_every_kind(failures, recoveries, line):
    assert text.summary(summary(failures=failures, recoveries=recoveries)).splitlines()[-2] == line


@pytest.mark.parametrize(
    ("more", "end"),
    [
        ({"ranks": 1}, "; continue with `mpidl train --resume runs/x`"),
        ({"ranks": 4}, "; continue with `mpidl train --resume runs/x -n 4`"),
        ({"ranks": 4, "virtual": True}, ""),
    ],
)
def test_a_stopped_run_says_how_it_goes_on_as_it_was(more, end):
    assert text.summary(summary(interrupted=True, **more)).splitlines()[-1] == f"runs/x: 2.5 epochs done{end}"


def test_an_evaluation_tells_of_all_data():
    assert text.evaluation({**QUALITY, "run_dir": "runs/x", "step": 40}).splitlines() == [
        "test exact match 0.6250, test loss 0.375",
        "test f1 0.5",
        "validation exact match 0.7500, validation loss 0.25",
        "runs/x, step 40",
    ]
