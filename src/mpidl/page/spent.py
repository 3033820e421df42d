"""Where the ranks' time went: a bar for each, the slowest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpidl.history.ranks import RankStatus
from mpidl.page.course import Course
from mpidl.report.text import quantity

#: The activities of a rank, and the colours of `mpidl.page.drawing`.
ACTIVITIES = {
    "computing": "blue", "pushing": "orange", "fetching": "sky", "waiting": "vermillion", "rest": "grey",
}  # fmt: skip
#: The most bars of workers, the slowest, and of other ranks.
WORKERS, OTHERS = 40, 20


class Bar(NamedTuple):
    """A rank, or several on average.

    Attributes
    ----------
    label, host, note : str
    parts : sequence of (str, float)
        Percentage of the time for each activity.
    """

    label: str
    host: str
    note: str
    parts: Sequence[tuple[str, float]]


def bars(course: Course) -> list[Bar]:
    """Return the bars of a run's ranks; one for its workers if nothing is known of each."""
    known = [each for each in course.run.ranks if _parts(each.shares)]
    workers = sorted((each for each in known if each.samples is not None and "worker" in each.role), key=_slowness)
    others = [each for each in known if each not in workers] if len(workers) < len(known) else []
    found = [_bar(each) for each in workers[:WORKERS]]
    found += _mean(workers[WORKERS:], "more workers") + [_bar(each) for each in others[:OTHERS]]
    found += _mean(others[OTHERS:], "more ranks")
    return found or average(course, "workers, on average")


def average(course: Course, label: str) -> list[Bar]:
    """Return the bar of a run's workers on average."""
    parts = _parts({name: course.last(f"shares.{name}") for name in ACTIVITIES})
    return [Bar(label, "", "", parts)] if parts else []


def _slowness(rank: RankStatus) -> tuple[float, float]:
    return rank.samples or 0.0, -(rank.share("computing") or 0.0)


def _bar(rank: RankStatus) -> Bar:
    state = f", {rank.state}" if rank.state == "dead" else ""
    samples = "" if rank.samples is None else f"{quantity(rank.samples, '')} samples"
    return Bar(f"{rank.role} (rank {rank.rank}{state})", rank.host or "", samples, _parts(rank.shares))


def _mean(many: Sequence[RankStatus], label: str) -> list[Bar]:
    if not many:
        return []
    parts = _parts({name: sum(each.share(name) or 0.0 for each in many) / len(many) for name in ACTIVITIES})
    return [Bar(f"{len(many)} {label}, on average", "", "", parts)]


def _parts(shares: Mapping[str, float | None] | None) -> list[tuple[str, float]]:
    """Return the percentages of the activities that a rank has spent time on."""
    found = [(name, 100 * max(0.0, (shares or {}).get(name) or 0.0)) for name in ACTIVITIES]
    return [(name, min(part, 100.0)) for name, part in found if part > 0]
