"""Where records and events lie: attempts of a run, its clock, what is evaluated."""

import numpy as np
from runs_by_hand import BEGAN, event, make, record, usual

from mpidl.history import open as open_run
from mpidl.page.course import Course
from mpidl.page.curves import histograms, plots
from mpidl.page.facts import marks

#: A run that is killed after 6 s, resumed 100 s later from what it had saved after 4 s, and resumed again.
KILLED = [record(float(second), 100.0 * second) for second in range(1, 7)]
RESUMED = [
    record(float(second), 100.0 * second, unix_time=BEGAN + 102 + second, bytes_pushed=1e6 * (second - 4),
           staleness_histogram=[100.0 * (second - 4)] * 2)
    for second in range(5, 9)
]  # fmt: skip
EVENTS = [
    event("checkpoint", 4.0, step=4),
    event("failure", 5.5, cause="a fault"),
    event("resume", 106.0, step=4),
    event("checkpoint", 109.0, step=7),
]


def course(tmp_path, records, events=()):
    return Course(open_run(make(tmp_path / "run", records, list(events))))


def curve(found, title, name):
    return next(each for plot in found if plot.title == title for each in plot.curves if each.name == name)


def test_attempts_are_told_apart(tmp_path):
    assert course(tmp_path, KILLED + RESUMED, EVENTS).attempt.tolist() == [0] * 6 + [1] * 4


def test_attempts_of_a_run_that_lost_nothing_are_told_apart_by_its_events(tmp_path):
    later = [record(7.0, 700.0, unix_time=BEGAN + 200), record(8.0, 800.0, unix_time=BEGAN + 201)]
    assert course(tmp_path, KILLED + later, [event("resume", 199.0)]).attempt.tolist() == [0] * 6 + [1] * 2


def test_events_lie_where_the_run_was_at_their_time(tmp_path):
    found = {each.lane: each.axes for each in marks(course(tmp_path, KILLED + RESUMED, EVENTS))}
    np.testing.assert_allclose(found["checkpoint"]["samples"], [400.0, 700.0])
    np.testing.assert_allclose(found["death"]["time"], [5.5])
    assert 5.0 <= found["resume"]["time"][0] <= 6.0


def test_events_of_a_virtual_run_lie_at_their_virtual_time(tmp_path):
    records = [{name: value for name, value in each.items() if name != "unix_time"} for each in usual()]
    found = marks(course(tmp_path, records, [event("checkpoint", 9999.0, virtual_time=2.5)]))
    np.testing.assert_allclose([found[0].axes["time"], found[0].axes["samples"]], [[2.5], [250.0]])


def test_a_gap_lies_between_two_attempts(tmp_path):
    found = curve(plots([course(tmp_path, KILLED + RESUMED, EVENTS)]), "Loss", "training")
    assert np.flatnonzero(np.isnan(found.values)).tolist() == [6]
    assert found.axes["time"].tolist() == [1, 2, 3, 4, 5, 6, 5, 5, 6, 7, 8]


def test_evaluations_that_records_repeat_are_drawn_once(tmp_path):
    found = curve(plots([course(tmp_path, usual())]), "Accuracy", "test")
    assert found.axes["samples"].tolist() == [500, 1000, 1500, 2000]
    np.testing.assert_allclose(found.values, [1 / 2, 2 / 3, 3 / 4, 4 / 5])


def test_traffic_is_that_of_each_stretch(tmp_path):
    found = curve(plots([course(tmp_path, KILLED + RESUMED, EVENTS)]), "Traffic", "pushed")
    known = found.values[np.isfinite(found.values)]
    assert len(known) == 9
    np.testing.assert_allclose(known, 1.0)


def test_the_histogram_is_that_of_each_stretch(tmp_path):
    """One push in three had seen all updates before it, in each stretch."""
    found = histograms(course(tmp_path, usual()))
    assert set(found.low) == {-0.5, 0.5}
    np.testing.assert_allclose(found.share[found.low == -0.5], 1 / 3)
    np.testing.assert_allclose(found.begin["time"][found.low == 0.5], np.append(0, np.arange(1, 20)))


def test_many_classes_of_staleness_are_joined(tmp_path):
    wide = [0.0] * 999 + [5.0]
    found = histograms(course(tmp_path, [record(1.0, 100.0, staleness_histogram=wide)]))
    assert found.share.tolist() == [1.0]
    assert found.low[0] < 999 < found.high[0]
    assert found.high[0] - found.low[0] == 32


def test_figures_that_no_record_has_are_not_drawn(tmp_path):
    known = {"samples": 1, "time": 1.0, "train_loss": 1.0, "server_load": None}
    bare = course(tmp_path, [known, known | {"server_load": "much"}, known | {"waiting": [1, 2]}])
    assert bare.run.metrics.skipped == 2
    assert [plot.title for plot in plots([bare])] == ["Loss"]
    assert plots([course(tmp_path, [])]) == []
