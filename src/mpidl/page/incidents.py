"""The events of a run, by their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mpidl.errors import shown
from mpidl.history import Run
from mpidl.page.course import Course
from mpidl.report.events import in_words

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


class Marks(NamedTuple):
    """The events of one lane, by their places on the axes and in words."""

    lane: str
    axes: Mapping[str, np.ndarray]
    texts: list[str]


def by_lane(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return a run's events in each lane that has any."""
    found = {lane: [each for each in run.event_list if each["event"] in kinds] for lane, kinds in LANES.items()}
    return {lane: events for lane, events in found.items() if events}


def marks(course: Course) -> list[Marks]:
    """Return the events of a run that have a place on its axes, by lanes."""
    found = []
    for lane, events in by_lane(course.run).items() if course.axes else ():
        times, virtual = (np.array([each.get(name) for each in events], float) for name in ("time", "virtual_time"))
        axes = {name: course.place(name, times, virtual) for name in course.axes}
        placed = np.flatnonzero(np.isfinite(next(iter(axes.values()))))
        # Of very many, some: they couldn't be told apart.
        chosen = placed[np.unique(np.linspace(0, len(placed) - 1, min(len(placed), MARKED)).astype(int))]
        if chosen.size:
            texts = [text(events[place]) for place in chosen]
            found.append(Marks(lane, {name: axis[chosen] for name, axis in axes.items()}, texts))
    return found


def latest(run: Run) -> list[dict[str, Any]]:
    """Return the last events of a run but those of quiet kinds."""
    return [each for each in run.event_list if each["event"] not in QUIET][-LISTED:]


def text(event: Mapping[str, Any]) -> str:
    """Return what an event says."""
    return shown(in_words(event), LONGEST)
