"""What a screen shows of a run, in the space that it has."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from mpidl.errors import escaped, shown
from mpidl.history.lines import LARGEST
from mpidl.report.text import duration, quantity, table
from mpidl.top.curves import curve
from mpidl.top.events import line
from mpidl.top.watched import DEAD, Watched

#: Colours of states; each is also a word.
STYLES = {
    "running": "bold green", "finished": "bold cyan", "stopped": "bold yellow", "failed": "bold red",
    "killed": "bold red", "dead": "red", "starting": "dim", "trained": "dim", "done": "dim",
}  # fmt: skip
#: Most lines of figures.
FIGURES = 2
#: Least columns of a screen on which all activities have a column of their own.
WIDE = 120
#: Activities of a worker, in columns of a wide screen, besides computing.
OTHERS = ("pushing", "fetching", "waiting", "rest")
#: Most lines of a curve, lines of events on a screen, with twice as many on a tall one, and in a text.
CURVE, EVENTS, TALL, LONG = 8, 4, 40, 10
#: Seconds without news after which a line says so.
QUIET = 5.0
#: Most characters of a name, and of one in a table, as many as fit.
NAME, NAMES = 60, (40, 20, 16, 12, 10, 8)
#: Columns of the table that are aligned left.
LEFT = 4


def view(watched: Watched, width: int, height: int | None = None) -> Group:
    """Return what a terminal of this width and height shows; without a height, everything."""
    head, ranks = [*_head(watched, width), *_ending(watched)], watched.ranks
    if height is None:
        events = _events(watched, LONG)
        return Group(*head, *_curve(watched, CURVE // 2), Text(), *_ranks(ranks, width), Text(), *events)
    foot = [*_events(watched, EVENTS if height < TALL else 2 * EVENTS), Text("q quits", "dim", justify="right")]
    # One line names the curve, and one the columns.
    room = max(1, height - len(head) - len(foot) - 2)
    least = min(len(ranks) or 1, room - 1)
    rows = max(1, min(CURVE, room - least))
    empty = max(0, room - least - rows)
    return Group(*head, *_curve(watched, rows), *_ranks(ranks, width, room - rows), *[Text()] * empty, *foot)


def _text(text: object, style: str = "", most: int = NAME) -> Text:
    """Return one line without control characters, cut off where the screen ends."""
    return Text(escaped(shown(str(text), most)), style=style, no_wrap=True, overflow="ellipsis")


def _line(parts: Sequence[Text]) -> Text:
    found = Text("  ", no_wrap=True, overflow="ellipsis").join(parts)
    found.no_wrap, found.overflow = True, "ellipsis"
    return found


# The head.


def _head(watched: Watched, width: int) -> list[Text]:
    record, state = watched.record, watched.state
    first = [_text(state, STYLES[state])]
    if (total := _number(record.get("time", record.get("seconds")))) is not None:
        first.append(_text(f"{_clock(total)} of training"))
    if state == "running" and watched.quiet >= QUIET:
        first.append(_text(f"no news for {duration(watched.quiet)}", "yellow"))
    # The end of a long path says more than its beginning.
    path, room = escaped(str(watched.directory)), max(NAME // 4, width - 2 - _line(first).cell_len)
    first.insert(0, _text(path if len(path) <= room else f"...{path[3 - room :]}", "bold", width))
    figures = [_progress(watched, record), *_figures(record)]
    notes = [_text(each, "yellow", width) for each in watched.notes]
    return [_line(first), *_filled([_text(each) for each in figures], width), *notes]


def _filled(parts: Sequence[Text], width: int) -> list[Text]:
    """Return parts as lines that are filled, the last of which may be cut off."""
    lines: list[list[Text]] = [[]]
    for each in parts:
        if lines[-1] and len(lines) < FIGURES and _line([*lines[-1], each]).cell_len > width:
            lines.append([])
        lines[-1].append(each)
    return [_line(each) for each in lines]


def _progress(watched: Watched, record: Mapping[str, Any]) -> str:
    epoch, samples, rate = (_number(record.get(name)) for name in ("epoch", "samples", "samples_per_second"))
    epoch = _number(record.get("epochs")) if epoch is None else epoch
    if epoch is None:
        return "no figures yet"
    run = watched.run.config.get("run")
    run = run if isinstance(run, dict) else {}
    whole = _number(run.get("epochs"))
    text = f"epoch {epoch:.1f}" + (f" of {whole:g}" if whole else "")
    iteration = record.get("iteration")
    if isinstance(iteration, dict) and isinstance(iteration.get("number"), int):
        text = f"iteration {iteration['number']}, {text}"
    if whole and samples and rate and epoch and watched.state == "running":
        text += f", {_clock((whole - epoch) * samples / epoch / rate)} left"
    return text


def _figures(record: Mapping[str, Any]) -> list[str]:
    """Return the figures of a record, the most telling first."""
    found = []
    if (rate := _number(record.get("samples_per_second"))) is not None:
        found.append(f"{rate:,.0f} samples/s")
    iteration = record.get("iteration")
    objective = _number(iteration.get("objective")) if isinstance(iteration, dict) else None
    found += [] if objective is None else [f"objective {objective:.4g}"]
    for name, value in record.items():
        if name.endswith(("_loss", "_accuracy")) and not name.startswith("best_") and _number(value) is not None:
            found.append(f"{shown(name.replace('_', ' '), NAME)} {value:.4g}")
    staleness = record.get("staleness")
    mean = _number(staleness.get("mean")) if isinstance(staleness, dict) else None
    return found if mean is None else [*found, f"staleness {mean:.1f}"]


def _ending(watched: Watched) -> list[Text]:
    """Return how a run has ended, and what to do next."""
    state, now = watched.state, watched.status.get("time")
    if state == "running":
        return []
    if state in DEAD:
        last = max((each for each in (now, *_times(watched)) if isinstance(each, int | float)), default=None)
        at = "" if last is None else f", last heard of at {_day(last)}"
        how = "no process uses it any more, and it has no summary" if state == "killed" else _cause(watched)
        return [
            _text(f"{'DIED' if watched.died else state.upper()}{at}: {how}", STYLES[state], 500),
            _text(watched.advice(), most=500),
        ]
    summary = watched.run.summary or {}
    if state == "stopped":
        return [_text("stopped by a signal, and saved", STYLES[state]), _text(watched.advice(), most=500)]
    why = f": {summary['stopped']}" if summary.get("stopped") else ""
    counted = [f"{summary[name]} {name}" for name in ("failures", "recoveries") if summary.get(name)]
    return [_text(", ".join([f"done{why}", *counted]), STYLES[state], 500)]


def _cause(watched: Watched) -> str:
    return line(watched.events[-1]).strip().partition("  ")[2] if watched.events else "it has failed"


def _times(watched: Watched) -> list[Any]:
    return [event.get("time") for event in watched.events]


def _day(seconds: float) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def _number(value: Any) -> float | None:
    """Return a number that can be shown, None if the value is none."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
    return value if known else None


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(min(max(0.0, seconds), 1e9)), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


# The curve.


class _Drawn:
    """A curve, in the characters that a terminal has."""

    def __init__(self, points: Sequence[tuple[float, float]], rows: int) -> None:
        self._points, self._rows = points, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for each in curve(self._points, options.max_width, self._rows, options.ascii_only):
            yield Text(each, style="cyan", no_wrap=True)


def _curve(watched: Watched, rows: int) -> list[Any]:
    """Return a curve of some lines, after one that says what it is."""
    name, points = watched.curve
    if not points:
        return [_text("no curve yet", "dim"), *[Text()] * rows]
    named = name.replace("iteration.", "").replace("_", " ")
    first, last = points[0], points[-1]
    said = f"{named} {first[1]:.4g} to {last[1]:.4g}, over {last[0]:,.0f} samples"
    return [_text(said, "dim"), _Drawn(points, rows)]


# The ranks.


def _ranks(ranks: Sequence[Mapping[str, Any]], width: int, room: int | None = None) -> list[Any]:
    """Return a table of ranks, and a line about those for which there is no room."""
    chosen, left = (ranks, []) if room is None or len(ranks) <= room else _slowest(ranks, max(1, room - 1))
    if not ranks:
        return [_text("no rank has reported yet", "dim")]
    shares = ("computing", *OTHERS) if width >= WIDE else ("computing",)
    named = shares if len(shares) > 1 else ("busy",)
    names = ("rank", "role", "host", "state", "samples/s", *named, "staleness", "queue", "memory")
    for most in NAMES:
        head, *lines = table([names, *(_cells(each, shares, most) for each in chosen)], LEFT)
        if len(head) <= width:
            break
    styles = (STYLES.get(str(each.get("state")), "") if each.get("state") != "working" else "" for each in chosen)
    found = [_text(head, "dim", width), *(_text(each, style, width) for each, style in zip(lines, styles, strict=True))]
    return [*found, *([_text(_more(left), "dim", width)] if left else [])]


def _cells(rank: Mapping[str, Any], activities: Sequence[str], most: int) -> list[str]:
    """Return what a line says of a rank; names have at most that many characters."""
    shares = rank.get("shares")
    shares = shares if isinstance(shares, dict) else {}
    played = rank.get("process")
    by = "" if played == rank.get("rank") else f" by {played}"
    role = re.sub(r", partition (\d+) of \d+", r".\1", str(rank.get("role")))
    names = (rank.get("rank"), role + by, rank.get("host") or "-", rank.get("state") or "-")
    rate, staleness, queue, memory = (
        _number(rank.get(name)) for name in ("samples_per_second", "staleness", "queue", "memory")
    )
    return [
        *(escaped(shown(str(each), most)) for each in names),
        "-" if rate is None else f"{rate:,.0f}",
        *("-" if (part := _number(shares.get(name))) is None else f"{part:.0%}" for name in activities),
        "-" if staleness is None else f"{staleness:.1f}",
        "-" if queue is None else f"{queue:g}",
        "-" if memory is None else quantity(memory, "B"),
    ]


def _slowest(ranks: Sequence[Mapping[str, Any]], room: int) -> tuple[list[Any], list[Any]]:
    """Return the ranks to look at, and the others: the dead, the busiest that don't train, and the slowest workers."""
    dead = [each for each in ranks if each.get("state") == "dead"]
    alive = [each for each in ranks if each.get("state") != "dead"]
    workers = sorted((each for each in alive if _rate(each) is not None), key=lambda each: _rate(each) or 0.0)
    others = sorted((each for each in alive if _rate(each) is None), key=_load, reverse=True)
    few = dead[: max(1, room // 3)]
    few += others[: max(1, (room - len(few)) // 4)] if workers else others
    chosen = (few + workers)[:room]
    kept = {id(each) for each in chosen}
    return chosen, [each for each in ranks if id(each) not in kept]


def _rate(rank: Mapping[str, Any]) -> float | None:
    return _number(rank.get("samples_per_second"))


def _load(rank: Mapping[str, Any]) -> float:
    shares = rank.get("shares")
    return (_number(shares.get("computing")) or 0.0) if isinstance(shares, dict) else -1.0


def _more(left: Sequence[Mapping[str, Any]]) -> str:
    rates = [rate for each in left if (rate := _rate(each)) is not None]
    fastest = f", the fastest at {max(rates):,.0f} samples/s" if rates else ""
    return f"and {len(left)} more rank{'s' * (len(left) > 1)}{fastest}; the slowest are shown"


def _events(watched: Watched, most: int) -> list[Text]:
    return [_text(line(each), most=500) for each in list(watched.events)[-most:]]
