"""What a page says of runs in words and figures: results, configuration, origin, events, and where time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from mpidl.errors import shown
from mpidl.history import Run
from mpidl.history.defaults import flat, numbers
from mpidl.history.lines import RankStatus
from mpidl.page.course import RunCourse
from mpidl.report.text import duration, in_words, quantity

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
#: What the numbers of events are called, by their lanes.
COUNTED = {
    "death": "deaths", "recovery": "recoveries", "resume": "resumptions", "stop": "stops",
    "dropped push": "dropped pushes", "backup": "backups",
}  # fmt: skip
#: Kinds that aren't listed: they say where a run is, or are many alike.
QUIET = ("placement", "device", "checkpoint", "backups")
#: The most events of a lane that are marked, events in the list, and letters of an event in words.
MARKED, LISTED, LONGEST = 400, 100, 300
#: What is to be as small, and as large, as possible.
SMALL, LARGE = ("loss", "objective", "training time"), ("accuracy", "speed")
#: The activities of a rank, and their colours.
ACTIVITIES = {
    "computing": "blue", "pushing": "orange", "fetching": "sky", "waiting": "vermillion", "rest": "grey",
}  # fmt: skip
#: The most bars of workers, the slowest, and of other ranks.
WORKERS, OTHERS = 40, 20


class Figure(NamedTuple):
    """A figure of a run: its name, its value as text, what explains it, and the number itself.

    `main` says whether it is one of those that a run is for: losses and metrics.
    """

    name: str
    text: str
    note: str = ""
    value: float | None = None
    main: bool = False


def figures(course: RunCourse) -> list[Figure]:
    """Return the final, or latest, figures of a run."""
    run, final, found = course.run, numbers(course.run.summary), by_lane(course.run)
    evaluated = [name for name in run.metrics if name.startswith(("test_", "validation_"))][::-1]
    since = ["since the resume"] if "resume" in found else []
    tails = {part: course.metrics.last(f"staleness.{part}") for part in ("p99", "max")}
    tail = [f"{part} {value:.0f}" for part, value in tails.items() if value is not None]
    saved = f"{duration(final['seconds_saved'])} saved" if final.get("seconds_saved") else ""
    # Names, those in records and in the summary, which comes first, and notes.
    rows: list[tuple[str, str, str, Callable[[float], str], str]] = [
        *((name.replace("_", " "), name, name, _short, "") for name in evaluated),
        ("training loss", "train_loss", "train_loss", _short, ""),
        ("objective", "iteration.objective", "", _short, ""),
        ("iterations", "iteration.number", "", "{:,.0f}".format, ""),
        ("epochs", "epoch", "epochs", _short, ""),
        ("samples", "samples", "samples", partial(quantity, unit=""), ""),
        ("virtual time" if is_virtual(run) else "training time", "time", "seconds", duration, ""),
        ("speed", "samples_per_second", "samples_per_second", partial(quantity, unit=""), "samples/s"),
        ("staleness", "staleness.mean", "", _short, ", ".join([*tail, *since])),
        ("gradients stopped", "gradients_stopped", "gradients_stopped", "{:,.0f}".format, saved),
        *((kind, f"bytes_{kind}", "", partial(quantity, unit="B"), "".join(since)) for kind in ("pushed", "fetched")),
    ]
    main = {name.replace("_", " ") for name in evaluated} | {"training loss"}
    return [
        *(
            Figure(name, text(value), note, value, name in main)
            for name, column, key, text, note in rows
            if (value := final.get(key, course.metrics.last(column))) is not None and (value or "bytes" not in column)
        ),
        *(Figure(COUNTED[lane], str(len(each)), "", len(each)) for lane, each in found.items() if lane in COUNTED),
    ]


def is_virtual(run: Run) -> bool:
    """Return whether a run was one on a simulated cluster."""
    return bool((run.summary or {}).get("virtual"))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


def compared(found: Sequence[Sequence[Figure]]) -> list[tuple[str, list[tuple[str, bool]]]]:
    """Return the figures of several runs: of each its name and, for every run, its text and whether it is the best."""
    runs = [{each.name: each for each in figures} for figures in found]
    return [
        (name, _compared(name, [run.get(name) for run in runs]))
        for name in dict.fromkeys(n for run in runs for n in run)
    ]


def _compared(name: str, cells: Sequence[Figure | None]) -> list[tuple[str, bool]]:
    values = [each.value for each in cells if each is not None and each.value is not None]
    best = None
    if len(values) > 1 and min(values) < max(values):
        best = min(values) if name.endswith(SMALL) else max(values) if name.endswith(LARGE) else None
    return [("–", False) if each is None else (each.text, best is not None and each.value == best) for each in cells]


def differing(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return the keys in which runs differ, each with its value in every run; their names and directories aside."""
    keys = [flat(run.config) for run in runs]
    names = dict.fromkeys(name for each in keys for name in each if name not in ("run.name", "run.dir"))
    rows = [(name, [as_text(each.get(name)) for each in keys]) for name in names]
    return [(name, cells) for name, cells in rows if len(set(cells)) > 1]


def as_text(value: Any) -> str:
    """Return a value of a key, as in TOML."""
    if value is None:
        return "–"
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value


def origin(run: Run) -> list[tuple[str, str]]:
    """Return where the figures of a run come from."""
    summary = run.summary or {}
    hosts = summary.get("hosts")
    if not isinstance(hosts, Mapping):
        hosts = Counter(each.host for each in run.ranks if each.host is not None)
    rows = [
        ("directory", str(run.directory)),
        ("command", summary.get("command")),
        ("started", summary.get("date")),
        ("seed", flat(run.config).get("run.seed")),
        ("version", None if "version" not in summary else f"mpidl {summary['version']}"),
        ("MPI", summary.get("mpi")),
        ("job", summary.get("job_id")),
        ("hosts", ", ".join(f"{host}: {number} rank{'s' * (number != 1)}" for host, number in hosts.items())),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def by_lane(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return a run's events in each lane that has any."""
    found = {lane: [each for each in run.event_list if each["event"] in kinds] for lane, kinds in LANES.items()}
    return {lane: events for lane, events in found.items() if events}


#: The events of each lane, by their places on the axes and in words.
Marks = dict[str, tuple[Mapping[str, np.ndarray], list[str]]]


def marks(course: RunCourse) -> Marks:
    """Return the events of a run that have a place on its axes."""
    found: Marks = {}
    for lane, events in by_lane(course.run).items() if course.axes else ():
        times, virtual = (np.array([each.get(name) for each in events], float) for name in ("time", "virtual_time"))
        axes = {name: course.place(name, times, virtual) for name in course.axes}
        placed = np.flatnonzero(np.isfinite(next(iter(axes.values()))))
        # Of very many, some: they couldn't be told apart.
        chosen = placed[np.unique(np.linspace(0, len(placed) - 1, min(len(placed), MARKED)).astype(int))]
        if chosen.size:
            texts = [in_short(events[place]) for place in chosen]
            found[lane] = {name: axis[chosen] for name, axis in axes.items()}, texts
    return found


def latest(run: Run) -> list[dict[str, Any]]:
    """Return the last events of a run but those of quiet kinds."""
    return [each for each in run.event_list if each["event"] not in QUIET][-LISTED:]


def in_short(event: Mapping[str, Any]) -> str:
    """Return what an event says, shortened."""
    return shown(in_words(event), LONGEST)


class Bar(NamedTuple):
    """How a rank, or several on average, spent their time.

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


def bars(course: RunCourse) -> list[Bar]:
    """Return the bars of a run's ranks, the slowest first; one for its workers if nothing is known of each."""
    known = [each for each in course.run.ranks if _parts(each.shares)]
    workers = sorted(filter(_is_worker, known), key=_slowness)
    others = [each for each in known if not _is_worker(each)]
    found = []
    for ranks, most, label in ((workers, WORKERS, "more workers"), (others, OTHERS, "more ranks")):
        found += [_bar(each) for each in ranks[:most]]
        if more := ranks[most:]:
            parts = _parts({name: sum(each.share(name) or 0.0 for each in more) / len(more) for name in ACTIVITIES})
            found.append(Bar(f"{len(more)} {label}, on average", "", "", parts))
    return found or average(course, "workers, on average")


def average(course: RunCourse, label: str) -> list[Bar]:
    """Return the bar of a run's workers on average."""
    parts = _parts({name: course.metrics.last(f"shares.{name}") for name in ACTIVITIES})
    return [Bar(label, "", "", parts)] if parts else []


def _is_worker(rank: RankStatus) -> bool:
    return rank.samples is not None and "worker" in rank.role


def _slowness(rank: RankStatus) -> tuple[float, float]:
    return rank.samples or 0.0, -(rank.share("computing") or 0.0)


def _bar(rank: RankStatus) -> Bar:
    state = f", {rank.state}" if rank.state == "dead" else ""
    samples = "" if rank.samples is None else f"{quantity(rank.samples, '')} samples"
    return Bar(f"{rank.role} (rank {rank.rank}{state})", rank.host or "", samples, _parts(rank.shares))


def _parts(shares: Mapping[str, float | None] | None) -> list[tuple[str, float]]:
    """Return the percentages of the activities that a rank has spent time on."""
    found = [(name, 100 * max(0.0, (shares or {}).get(name) or 0.0)) for name in ACTIVITIES]
    return [(name, min(part, 100.0)) for name, part in found if part > 0]
