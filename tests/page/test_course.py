"""Where records and events of a run lie, which points of curves a screen shows, and which parts of a timeline."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from runs_by_hand import BEGAN, event, make, record, usual

import mpidl
from mpidl.history import open as open_run
from mpidl.page.course import RunCourse, kept, part_of
from mpidl.page.curves import histograms, plots
from mpidl.page.facts import marks
from mpidl.page.timeline import GRADIENT, OF_KINDS, PIXELS, SECONDS, timeline
from mpidl.page.writing import html
from mpidl.tracing import KINDS, RankSpans
from mpidl.tracing.files import write
from mpidl.tracing.spans import SPAN

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
    return RunCourse(open_run(make(tmp_path / "run", records, list(events))))


def curve(found, title, name):
    return next(each for plot in found if plot.title == title for each in plot.curves if each.name == name)


def test_attempts_are_told_apart(tmp_path):
    assert course(tmp_path, KILLED + RESUMED, EVENTS).attempt.tolist() == [0] * 6 + [1] * 4


def test_attempts_of_a_run_that_lost_nothing_are_told_apart_by_its_events(tmp_path):
    later = [record(7.0, 700.0, unix_time=BEGAN + 200), record(8.0, 800.0, unix_time=BEGAN + 201)]
    assert course(tmp_path, KILLED + later, [event("resume", 199.0)]).attempt.tolist() == [0] * 6 + [1] * 2


def test_events_lie_where_the_run_was_at_their_time(tmp_path):
    found = {lane: axes for lane, (axes, _) in marks(course(tmp_path, KILLED + RESUMED, EVENTS)).items()}
    np.testing.assert_allclose(found["checkpoint"]["samples"], [400.0, 700.0])
    np.testing.assert_allclose(found["death"]["time"], [5.5])
    assert 5.0 <= found["resume"]["time"][0] <= 6.0


def test_events_of_a_virtual_run_lie_at_their_virtual_time(tmp_path):
    records = [{name: value for name, value in each.items() if name != "unix_time"} for each in usual()]
    found = marks(course(tmp_path, records, [event("checkpoint", 9999.0, virtual_time=2.5)]))
    axes, _ = found["checkpoint"]
    np.testing.assert_allclose([axes["time"], axes["samples"]], [[2.5], [250.0]])


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
    assert set(found["low"]) == {-0.5, 0.5}
    np.testing.assert_allclose(found["share"][found["low"] == -0.5], 1 / 3)
    np.testing.assert_allclose(found["begin time"][found["low"] == 0.5], np.append(0, np.arange(1, 20)))


def test_many_classes_of_staleness_are_joined(tmp_path):
    wide = [0.0] * 999 + [5.0]
    found = histograms(course(tmp_path, [record(1.0, 100.0, staleness_histogram=wide)]))
    assert found["share"].tolist() == [1.0]
    assert found["low"][0] < 999 < found["high"][0]
    assert found["high"][0] - found["low"][0] == 32


def test_figures_that_no_record_has_are_not_drawn(tmp_path):
    known = {"samples": 1, "time": 1.0, "train_loss": 1.0, "server_load": None}
    bare = course(tmp_path, [known, known | {"server_load": "much"}, known | {"waiting": [1, 2]}])
    assert bare.run.metrics.skipped == 2
    assert [plot.title for plot in plots([bare])] == ["Loss"]
    assert plots([course(tmp_path, [])]) == []


NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@st.composite
def curves(draw):
    rows = draw(st.integers(0, 60))
    values = draw(arrays.arrays(float, rows, elements=NUMBERS))
    axis = arrays.arrays(float, rows, elements=st.floats(0, 1e6) | st.just(np.nan))
    return [draw(axis), np.arange(rows, dtype=float)], values, draw(st.integers(1, 12))


@given(curves())
def test_each_part_of_each_axis_keeps_its_extremes(curve):
    axes, values, parts = curve
    found = kept(axes, values, parts)
    assert np.array_equal(found, np.unique(found))
    assert np.isfinite(values[found]).all()
    finite = np.isfinite(values)
    for axis in axes:
        there = np.flatnonzero(finite & np.isfinite(axis))
        if not there.size:
            continue
        part = part_of(axis[there], parts)
        chosen = np.isin(there, found)
        for number in np.unique(part):
            every = values[there][part == number]
            some = values[there][(part == number) & chosen]
            assert (some.min(), some.max()) == (every.min(), every.max())


@given(curves())
def test_there_are_no_more_points_than_a_screen_shows(curve):
    axes, values, parts = curve
    found = kept(axes, values, parts)
    assert len(found) <= 2 + 2 * parts * len(axes)
    finite = np.flatnonzero(np.isfinite(values))
    if finite.size:
        assert {finite[0], finite[-1]} <= set(found)


def test_short_curves_keep_all_points():
    values = np.array([1.0, np.nan, 3.0, np.inf, 2.0])
    assert kept([np.arange(5.0)], values, 2).tolist() == [0, 2, 4]


WAIT = KINDS.index("wait")


def spans(*found):
    """Return spans of these kinds, starts and ends."""
    made = np.full(len(found), -1, SPAN)
    for name, values in zip(("kind", "start", "end"), zip(*found, strict=True), strict=True):
        made[name] = values
    return made


def traced(directory, *ranks):
    run = make(directory / "run")
    for rank, (role, found) in enumerate(ranks):
        write(run, RankSpans(rank, role, "left", found))
    return mpidl.open(run)


def rows(part):
    """Return each rank's starts and lengths in seconds, and kinds."""
    return {label: spans.tolist() for label, spans in part.ranks.items()}


def test_every_kind_has_a_colour():
    assert tuple(OF_KINDS) == KINDS


def test_a_run_that_was_not_traced_has_no_timeline(tmp_path):
    assert timeline(mpidl.open(make(tmp_path / "run"))) == []


def test_the_first_seconds_and_the_worst(tmp_path):
    """Both workers compute, but that both wait from 14 to 15.5 s, and one from 5 to 6.5 s."""
    busy = spans((GRADIENT, 100, 114), (WAIT, 114, 115.5), (GRADIENT, 115.5, 120))
    lazy = spans(
        (GRADIENT, 100, 105), (WAIT, 105, 106.5), (GRADIENT, 106.5, 114), (WAIT, 114, 115.5), (GRADIENT, 115.5, 120)
    )
    first, worst = timeline(traced(tmp_path, ("worker 0", busy), ("worker 1", lazy)))
    assert first.begin == 0
    assert rows(first) == {f"worker {rank} (rank {rank})": [[0, SECONDS, GRADIENT]] for rank in (0, 1)}
    assert 13.4 <= worst.begin <= 14.1
    assert any(kind == WAIT for *_, kind in rows(worst)["worker 0 (rank 0)"])


def test_a_short_run_has_its_first_seconds_alone(tmp_path):
    (part,) = timeline(traced(tmp_path, ("worker 0", spans((GRADIENT, 0.5, 1.0), (WAIT, 1.0, 1.25)))))
    assert rows(part)["worker 0 (rank 0)"] == [[0, 0.5, GRADIENT], [0.5, 0.25, WAIT]]


def test_of_short_spans_each_pixel_shows_the_longest(tmp_path):
    starts = np.arange(0, 2, 1e-4)
    many = spans(
        *[(GRADIENT, start, start + (9e-5 if row % 7 else 5e-5)) for row, start in enumerate(starts)], (WAIT, 2, 3)
    )
    (part,) = timeline(traced(tmp_path, ("worker 0", many)))
    found = np.array(rows(part)["worker 0 (rank 0)"])
    assert PIXELS * 0.9 <= len(found) <= PIXELS + 1
    assert found[:, 1].min() == pytest.approx(9e-5, abs=1e-6)


def test_of_many_ranks_the_slowest_workers_are_shown(tmp_path):
    def worker(number):
        return f"worker {number}", spans(*[(GRADIENT, 0.1 * step, 0.1 * step + 0.05) for step in range(1 + number)])

    ranks = [("server 0", spans((WAIT, 0, 1))), *(worker(number) for number in range(30))]
    (part,) = timeline(traced(tmp_path, *ranks))
    assert list(rows(part)) == ["server 0 (rank 0)", *(f"worker {number} (rank {number + 1})" for number in range(16))]


def test_a_page_draws_the_parts_of_a_timeline(tmp_path):
    """A role is text, not a formula, for which Bokeh would need another megabyte."""
    text = html([traced(tmp_path, ("worker $$0$$", spans((GRADIENT, 0.5, 1.0), (WAIT, 1.0, 1.25))))])
    assert text.count("data-root-id=") == 1
    assert '"text":"worker $$0$$ (rank 0)"' in text
    assert len(text) < 1_600_000
