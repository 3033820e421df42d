"""What a screen shows of a run, in the space that it has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from mpidl.errors import escaped, shown
from mpidl.history.defaults import numbers
from mpidl.history.ranks import RankStatus
from mpidl.report.events import in_words, time_of_day
from mpidl.report.text import duration, quantity
from mpidl.top.curves import curve
from mpidl.top.watched import DEAD, Watched

#: Colours of states; each is also a word.
STYLES = {
    "running": "bold green", "finished": "bold cyan", "stopped": "bold yellow", "failed": "bold red",
    "killed": "bold red", "dead": "red", "starting": "dim", "trained": "dim", "done": "dim",
}  # fmt: skip
#: Most lines of figures.
FIGURES = 2
#: Least columns of a screen on which all activities have a column of their own, and of one that cuts off no table.
WIDE, NARROW = 120, 76
#: Activities of a worker, in columns of a wide screen, besides computing.
OTHERS = ("pushing", "fetching", "waiting", "rest")
#: Most lines of a curve, lines of events on a screen, with twice as many on a tall one, and in a text.
CURVE, EVENTS, TALL, LONG = 8, 4, 40, 10
#: Seconds without news after which a line says so.
QUIET = 5.0
#: Most characters of a name, and of a sentence.
NAME, SENTENCE = 60, 500


def view(watched: Watched, width: int, height: int | None = None) -> Group:
    """Return what a terminal of this width and height shows; without a height, everything."""
    head, ranks = [*_head(watched, width), *_ending(watched)], watched.ranks
    if height is None:
        curve, table = _curve(watched, CURVE // 2), _ranks(ranks, width, len(ranks))
        return Group(*head, *curve, Text(), *table, Text(), *_events(watched, LONG))
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
    figures, state = watched.figures, watched.state
    first = [_text(state, STYLES[state])]
    if (total := figures.get("time", figures.get("seconds"))) is not None:
        first.append(_text(f"{_clock(total)} of training"))
    if state == "running" and watched.quiet >= QUIET:
        first.append(_text(f"no news for {duration(watched.quiet)}", "yellow"))
    # The end of a long path says more than its beginning.
    path, room = escaped(str(watched.directory)), max(NAME // 4, width - 2 - _line(first).cell_len)
    first.insert(0, _text(path if len(path) <= room else f"...{path[3 - room :]}", "bold", width))
    lines: list[list[Text]] = [[]]
    for each in map(_text, [_progress(watched, figures), *_figures(figures)]):
        if lines[-1] and len(lines) < FIGURES and _line([*lines[-1], each]).cell_len > width:
            lines.append([])
        lines[-1].append(each)
    return [_line(first), *map(_line, lines), *(_text(each, "yellow", width) for each in watched.notes)]


def _progress(watched: Watched, figures: Mapping[str, float]) -> str:
    epoch = figures.get("epoch", figures.get("epochs"))
    if epoch is None:
        return "no figures yet"
    whole = numbers(watched.run.config).get("run.epochs")
    text = f"epoch {epoch:.1f}" + (f" of {whole:g}" if whole else "")
    if "iteration.number" in figures:
        text = f"iteration {figures['iteration.number']:.0f}, {text}"
    samples, rate = figures.get("samples"), figures.get("samples_per_second")
    if whole and samples and rate and epoch and watched.state == "running":
        text += f", {_clock((whole - epoch) * samples / epoch / rate)} left"
    return text


def _figures(figures: Mapping[str, float]) -> list[str]:
    """Return the figures of a record, the most telling first."""
    losses = [name for name in figures if name.endswith(("_loss", "_accuracy")) and not name.startswith("best_")]
    found = [
        ("samples_per_second", "", ",.0f", " samples/s"),
        ("iteration.objective", "objective ", ".4g", ""),
        *((name, f"{shown(name.replace('_', ' '), NAME)} ", ".4g", "") for name in losses),
        ("staleness.mean", "staleness ", ".1f", ""),
    ]
    return [f"{before}{figures[name]:{form}}{after}" for name, before, form, after in found if name in figures]


def _ending(watched: Watched) -> list[Text]:
    """Return how a run has ended, and what to do next."""
    state, summary = watched.state, watched.run.summary or {}
    if state == "running":
        return []
    if state in DEAD:
        times = [each for each in (watched.status, *watched.events) if isinstance(each.get("time"), int | float)]
        at = f", last heard of at {time_of_day(max(each['time'] for each in times))}" if times else ""
        how = "no process uses it any more, and it has no summary"
        if state == "failed":
            how = in_words(watched.events[-1]) if watched.events else "it has failed"
        said = f"{'DIED' if watched.died else state.upper()}{at}: {how}"
    elif state == "stopped":
        said = "stopped by a signal, and saved"
    else:
        why = f": {summary['stopped']}" if summary.get("stopped") else ""
        said = ", ".join(
            [f"done{why}", *(f"{summary[name]} {name}" for name in ("failures", "recoveries") if summary.get(name))]
        )
    advice = [] if state == "finished" else [_text(watched.advice(), most=SENTENCE)]
    return [_text(said, STYLES[state], SENTENCE), *advice]


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


def _ranks(ranks: Sequence[RankStatus], width: int, room: int) -> list[Any]:
    """Return a table of ranks, and a line about those for which there is no room."""
    if not ranks:
        return [_text("no rank has reported yet", "dim")]
    chosen = ranks if len(ranks) <= room else _slowest(ranks, max(1, room - 1))
    shares = ("computing", *OTHERS) if width >= WIDE else ("computing",)
    table = Table(
        box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", width=NARROW if width < NARROW else None
    )
    for name in ("rank", "role", "host", "state"):
        table.add_column(_text(name), no_wrap=name in ("rank", "state"))
    for name in ("samples/s", *(shares if len(shares) > 1 else ("busy",)), "staleness", "queue", "memory"):
        table.add_column(_text(name), justify="right", no_wrap=True)
    for each in chosen:
        style = STYLES.get(str(each.state), "") if each.state != "working" else ""
        table.add_row(*map(_text, _cells(each, shares)), style=style)
    kept = set(map(id, chosen))
    left = [each.samples_per_second for each in ranks if id(each) not in kept]
    return [table, *([_text(_more(left), "dim", width)] if left else [])]


def _cells(rank: RankStatus, shares: Sequence[str]) -> list[Any]:
    """Return what a line says of a rank."""
    by = "" if rank.process in (None, rank.rank) else f" by {rank.process}"
    role = re.sub(r", partition (\d+) of \d+", r".\1", rank.role)
    figures = [
        ("{:,.0f}", rank.samples_per_second),
        *(("{:.0%}", rank.share(name)) for name in shares),
        ("{:.1f}", rank.staleness),
        ("{:g}", rank.queue),
        ("{}", None if rank.memory is None else quantity(rank.memory, "B")),
    ]
    said = ["-" if value is None else text.format(value) for text, value in figures]
    return [rank.rank, role + by, rank.host or "-", rank.state or "-", *said]


def _slowest(ranks: Sequence[RankStatus], room: int) -> list[RankStatus]:
    """Return the ranks to look at: the dead, the busiest that don't train, and the slowest workers."""
    dead = [each for each in ranks if each.state == "dead"]
    alive = [each for each in ranks if each.state != "dead"]
    workers = [each for each in alive if each.samples_per_second is not None]
    workers.sort(key=lambda each: each.samples_per_second or 0.0)
    others = [each for each in alive if each.samples_per_second is None]
    others.sort(key=lambda each: each.share("computing") or 0.0, reverse=True)
    few = dead[: max(1, room // 3)]
    few += others[: max(1, (room - len(few)) // 4)] if workers else others
    return (few + workers)[:room]


def _more(rates: Sequence[float | None]) -> str:
    known = [rate for rate in rates if rate is not None]
    fastest = f", the fastest at {max(known):,.0f} samples/s" if known else ""
    return f"and {len(rates)} more rank{'s' * (len(rates) > 1)}{fastest}; the slowest are shown"


def _events(watched: Watched, most: int) -> list[Text]:
    shown = list(watched.events)[-most:]
    return [_text(f"{time_of_day(each.get('time')):8}  {in_words(each)}", most=SENTENCE) for each in shown]
