"""A run's speed where batches take longer than the moments between two looks, and the time left that follows it."""

import re

import pytest

from mpidl.engines.totals import Spent, Totals
from mpidl.report.lines import Title
from mpidl.report.progress import LogProgress
from mpidl.report.rates import Rates

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
