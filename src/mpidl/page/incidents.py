"""The events of a run: their kinds, and what happened in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from mpidl.errors import shown
from mpidl.history import Columns, Run
from mpidl.page.course import Course
from mpidl.report.text import died, replaced

#: Lanes of events, from the top down, and the kinds in each.
LANES: dict[str, tuple[str, ...]] = {
    "death": ("failure",),
    "recovery": ("recovery",),
    "stop": ("interrupted", "stopped", "drain"),
    "resume": ("resume",),
    "lost": ("lost",),
    "dropped push": ("drop",),
    "backup": ("backups",),
    "checkpoint": ("checkpoint",),
}
#: Kinds that aren't listed: they say where a run is, or are many alike.
QUIET = ("placement", "device", "checkpoint", "backups")
#: The most events of a lane that are marked, and events in the list.
MARKED, LISTED = 400, 100
#: The most letters of an event in words.
LONGEST = 300
#: The lines of a run's log about events.
LINES = {"failure": died, "recovery": replaced}
#: What every event has.
COMMON = ("time", "event", "rank", "role", "virtual_time")


class Marks(NamedTuple):
    """The events of one lane, by their places on the axes and in words."""

    lane: str
    axes: Mapping[str, np.ndarray]
    texts: list[str]


def marks(course: Course) -> list[Marks]:
    """Return the events of a run that have a place on its axes, by lanes."""
    events = course.run.events
    if not (events.rows and course.axes and "event" in events):
        return []
    times, virtual = (_numbers(events, name) for name in ("time", "virtual_time"))
    axes = {name: course.place(name, times, virtual) for name in course.axes}
    placed = np.isfinite(next(iter(axes.values())))
    found = []
    for lane, kinds in LANES.items():
        chosen = np.flatnonzero(placed & np.isin(events["event"].astype(str), kinds))
        # Of very many, some: they couldn't be told apart.
        chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, min(len(chosen), MARKED)).astype(int))]
        if chosen.size:
            texts = [in_words(event) for event in _rows(course.run, chosen)]
            found.append(Marks(lane, {name: axis[chosen] for name, axis in axes.items()}, texts))
    return found


def _numbers(events: Columns, name: str) -> np.ndarray:
    """Return a number of each event; NaN where there is none."""
    found = events.get(name)
    return np.full(events.rows, np.nan) if found is None or found.dtype != float or found.ndim > 1 else found


def counts(run: Run) -> dict[str, int]:
    """Return the number of a run's events in each lane that has any."""
    kinds = run.events["event"].astype(str) if "event" in run.events else np.array([], str)
    found = {lane: int(np.isin(kinds, each).sum()) for lane, each in LANES.items()}
    return {lane: number for lane, number in found.items() if number}


def latest(run: Run) -> list[Mapping[str, Any]]:
    """Return the last events of a run but those of quiet kinds."""
    if "event" not in run.events:
        return []
    kinds = run.events["event"].astype(str)
    chosen = np.flatnonzero(~np.isin(kinds, QUIET))[-LISTED:]
    return list(_rows(run, chosen))


def _rows(run: Run, chosen: np.ndarray) -> Iterable[Mapping[str, Any]]:
    """Yield events as mappings, without what they don't have."""
    for place in chosen:
        row = {name: values[place] if values.ndim == 1 else None for name, values in run.events.items()}
        yield {name: _plain(value) for name, value in row.items() if value is not None and value == value}


def _plain(value: Any) -> Any:
    """Return a whole number as such: in columns all are floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def in_words(event: Mapping[str, Any]) -> str:
    """Return what an event says."""
    with suppress(KeyError, TypeError, AttributeError):  # written otherwise, or by an earlier version
        if event["event"] in LINES and "cause" not in event:
            complete = {"signal": None, "lost": {}, **event}
            return shown(LINES[event["event"]](int(event["rank"]), event["role"], complete), LONGEST)
    details = [f"{name} {_text(value)}" for name, value in event.items() if name not in COMMON]
    who = f"{event.get('role', '')} (rank {_text(event['rank'])})" if "rank" in event else event.get("role", "")
    return shown(f"{event['event']}: {', '.join([str(who), *details])}", LONGEST)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"
    return str(value)
