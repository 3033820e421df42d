"""What a page says of runs in words and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mpidl.history import Run
from mpidl.history.defaults import flat
from mpidl.page.course import Course
from mpidl.page.incidents import counts
from mpidl.report.text import duration, quantity

#: The states of a run, in words.
STATES = {
    "running": "running", "finished": "finished", "stopped": "stopped by a signal, saved", "failed": "failed",
    "killed": "killed",
}  # fmt: skip
#: What the numbers of events are called, by their lanes.
COUNTED = {
    "death": "deaths", "recovery": "recoveries", "resume": "resumptions", "stop": "stops",
    "dropped push": "dropped pushes", "backup": "backups",
}  # fmt: skip
#: What is to be as small, and as large, as possible.
SMALL, LARGE = ("loss", "objective", "training time"), ("accuracy", "speed")


class Figure(NamedTuple):
    """A figure of a run: its name, its value as text, what explains it, and the number itself.

    `main` says whether it is one of those that a run is for: losses and metrics.
    """

    name: str
    text: str
    note: str = ""
    value: float | None = None
    main: bool = False


def number(value: Any) -> float | None:
    """Return a number from the files of a run; None if it is anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def figures(course: Course) -> list[Figure]:
    """Return the final, or latest, figures of a run."""
    run, summary = course.run, course.run.summary or {}

    def known(name: str, column: str = "") -> float | None:
        found = number(summary.get(name))
        return course.last(column or name) if found is None else found

    found: list[Figure | None] = []
    for name in [each for each in run.metrics if each.startswith(("test_", "validation_"))][::-1]:
        found.append(_figure(name.replace("_", " "), known(name), _short))
    found.append(_figure("training loss", known("train_loss"), _short))
    found = [None if each is None else each._replace(main=True) for each in found]
    if course.has("iteration.objective"):
        found.append(_figure("objective", course.last("iteration.objective"), _short))
        found.append(_figure("iterations", course.last("iteration.number"), "{:,.0f}".format))
    found.append(_figure("epochs", known("epochs", "epoch"), _short))
    found.append(_figure("samples", known("samples"), lambda value: quantity(value, "")))
    virtual = "virtual time" if summary.get("virtual") else "training time"
    found.append(_figure(virtual, known("seconds", "time"), duration))
    found.append(_figure("speed", known("samples_per_second"), lambda value: quantity(value, ""), "samples/s"))
    since = "since the resume" if "resume" in counts(run) else ""
    if course.has("staleness.mean"):
        tail = [
            f"{part} {course.last(f'staleness.{part}'):.0f}"
            for part in ("p99", "max")
            if course.has(f"staleness.{part}")
        ]
        found.append(
            _figure("staleness", course.last("staleness.mean"), _short, ", ".join([*tail, since] if since else tail))
        )
    for kind in ("pushed", "fetched"):
        if course.last(f"bytes_{kind}"):
            found.append(_figure(kind, course.last(f"bytes_{kind}"), lambda value: quantity(value, "B"), since))
    found += [Figure(COUNTED[lane], str(number), "", number) for lane, number in counts(run).items() if lane in COUNTED]
    return [each for each in found if each is not None]


def _figure(name: str, value: float | None, shown: Callable[[float], str], note: str = "") -> Figure | None:
    return None if value is None else Figure(name, shown(value), note, value)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


class Comparison(NamedTuple):
    """A row of a table of several runs: a cell for each, and whether it is the best of them."""

    name: str
    cells: Sequence[tuple[str, bool]]


def compared(found: Sequence[Sequence[Figure]]) -> list[Comparison]:
    """Return the figures of several runs, each in a row."""
    names = dict.fromkeys(each.name for figures in found for each in figures)
    rows = []
    for name in names:
        cells = [next((each for each in figures if each.name == name), None) for figures in found]
        values = [each.value for each in cells if each is not None and each.value is not None]
        best = None
        if len(values) > 1 and min(values) < max(values):
            best = min(values) if name.endswith(SMALL) else max(values) if name.endswith(LARGE) else None
        rows.append(
            Comparison(
                name,
                [
                    ("–", False) if each is None else (each.text, best is not None and each.value == best)
                    for each in cells
                ],
            )
        )
    return rows


class Key(NamedTuple):
    """A key of a configuration: its name, its value, and its default where that is another one."""

    name: str
    value: str
    default: str | None


def configuration(run: Run) -> list[Key]:
    """Return the keys of a run's configuration: first those that differ from their defaults."""
    changed = run.changed
    keys = [
        Key(name, _value(value), _value(changed[name][1]) if name in changed else None)
        for name, value in flat(run.config).items()
    ]
    return sorted(keys, key=lambda key: key.default is None)


def differing(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return the keys in which runs differ, each with its value in every run; their names and directories aside."""
    keys = [flat(run.config) for run in runs]
    names = dict.fromkeys(name for each in keys for name in each if name not in ("run.name", "run.dir"))
    rows = [(name, [_value(each[name]) if name in each else "–" for each in keys]) for name in names]
    return [(name, cells) for name, cells in rows if len(set(cells)) > 1]


def _value(value: Any) -> str:
    """Return a value of a key, as in TOML."""
    if value is None:
        return "–"
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value


def origin(run: Run) -> list[tuple[str, str]]:
    """Return where the figures of a run come from."""
    summary = run.summary or {}
    hosts = summary.get("hosts")
    if not isinstance(hosts, Mapping):
        hosts = _hosts(run)
    rows = [
        ("directory", str(run.directory)),
        ("command", summary.get("command")),
        ("started", summary.get("date")),
        ("seed", flat(run.config).get("run.seed")),
        ("version", None if "version" not in summary else f"mpidl {summary['version']}"),
        ("MPI", summary.get("mpi")),
        ("job", summary.get("job_id")),
        ("hosts", ", ".join(f"{host}: {_ranks(ranks)}" for host, ranks in hosts.items())),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _ranks(number: Any) -> str:
    return f"{number} rank{'s' * (number != 1)}"


def _hosts(run: Run) -> dict[str, int]:
    """Return the number of ranks on each host, for a run that has no summary."""
    found: dict[str, int] = {}
    for each in run.ranks:
        if each.host is not None:
            found[each.host] = found.get(each.host, 0) + 1
    return found
