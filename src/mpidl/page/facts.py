"""What a page says of runs in words and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from mpidl.history import Run
from mpidl.history.defaults import flat, numbers
from mpidl.page.course import Course
from mpidl.page.incidents import by_lane
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


def figures(course: Course) -> list[Figure]:
    """Return the final, or latest, figures of a run."""
    run, final, found = course.run, numbers(course.run.summary), by_lane(course.run)
    evaluated = [name for name in run.metrics if name.startswith(("test_", "validation_"))][::-1]
    since = ["since the resume"] if "resume" in found else []
    tails = {part: course.last(f"staleness.{part}") for part in ("p99", "max")}
    tail = [f"{part} {value:.0f}" for part, value in tails.items() if value is not None]
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
        *((kind, f"bytes_{kind}", "", partial(quantity, unit="B"), "".join(since)) for kind in ("pushed", "fetched")),
    ]
    main = {name.replace("_", " ") for name in evaluated} | {"training loss"}
    return [
        *(
            Figure(name, text(value), note, value, name in main)
            for name, column, key, text, note in rows
            if (value := final.get(key, course.last(column))) is not None and (value or "bytes" not in column)
        ),
        *(Figure(COUNTED[lane], str(len(each)), "", len(each)) for lane, each in found.items() if lane in COUNTED),
    ]


def is_virtual(run: Run) -> bool:
    """Return whether a run was one on a simulated cluster."""
    return bool((run.summary or {}).get("virtual"))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.4g}"


class Comparison(NamedTuple):
    """A row of a table of several runs: a cell for each, and whether it is the best of them."""

    name: str
    cells: Sequence[tuple[str, bool]]


def compared(found: Sequence[Sequence[Figure]]) -> list[Comparison]:
    """Return the figures of several runs, each in a row."""
    names = dict.fromkeys(each.name for figures in found for each in figures)
    return [_compared(name, [{each.name: each for each in figures}.get(name) for figures in found]) for name in names]


def _compared(name: str, cells: Sequence[Figure | None]) -> Comparison:
    values = [each.value for each in cells if each is not None and each.value is not None]
    best = None
    if len(values) > 1 and min(values) < max(values):
        best = min(values) if name.endswith(SMALL) else max(values) if name.endswith(LARGE) else None
    texts = [("–", False) if each is None else (each.text, best is not None and each.value == best) for each in cells]
    return Comparison(name, texts)


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
        hosts = Counter(each.host for each in run.ranks if each.host is not None)
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
