"""Somebody sets the wall clock during a run: intervals and durations don't notice, time stamps follow."""

import json
import time

import pytest

import mpidl
from mpidl.data import Dataset

HOUR = 3600.0
#: Batches of a run, and seconds that each takes.
BATCHES, SECONDS = 130, 2e-3


@pytest.fixture
def set_during(monkeypatch, least_squares, tmp_path):
    """Train a model while the wall clock is set by some seconds; return the summary and the lines of a file."""
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])

    def run(seconds):
        model, split = least_squares()
        gradient, calls = model.loss_and_gradient, []

        def slow(batch):
            calls.append(batch)
            ahead[0] = seconds if len(calls) > BATCHES // 3 else 0.0
            time.sleep(SECONDS)
            return gradient(batch)

        model.loss_and_gradient = slow
        data = Dataset("test", (1,), None, split, split)
        summary = mpidl.train(
            model, data, rule=mpidl.Sgd(0.01), batch=8, epochs=BATCHES // 13, dir=tmp_path, checkpoint_every=0.03,
            report=0.03, keep=100,
        )  # fmt: skip
        return summary, *(
            list(map(json.loads, (tmp_path / "run" / f"{name}.jsonl").read_text().splitlines()))
            for name in ("metrics", "events")
        )

    return run


@pytest.mark.parametrize("seconds", [-HOUR, HOUR])
def test_intervals_and_durations(set_during, seconds):
    summary, records, events = set_during(seconds)
    assert BATCHES * SECONDS < summary["seconds"] < 60
    assert summary["samples_per_second"] == pytest.approx(summary["samples"] / summary["seconds"])
    times = [record["time"] for record in records]
    assert times == sorted(times)
    assert times[-1] < 60
    half = summary["samples"] / 2
    assert len([record for record in records if half < record["samples"] < summary["samples"]]) > 1
    steps = [event["step"] for event in events if event["event"] == "checkpoint"]
    assert len([step for step in steps if BATCHES // 2 < step < BATCHES]) > 1


def test_time_stamps(set_during):
    _, _, events = set_during(HOUR)
    stamps = [event["time"] for event in events]
    assert HOUR <= stamps[-1] - stamps[0] < HOUR + 60
