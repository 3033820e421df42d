"""Parts of a timeline: the first seconds, and those in which the workers computed least."""

import numpy as np
import pytest
from runs_by_hand import make

import mpidl
from mpidl.page.timeline import GRADIENT, OF_KINDS, PIXELS, SECONDS, timeline
from mpidl.tracing import KINDS, RankSpans
from mpidl.tracing.files import write
from mpidl.tracing.spans import SPAN

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
