"""What a screen shows of a run, in the space that it has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mpidl.errors import escaped, shown
from mpidl.history.defaults import numbers
from mpidl.history.lines import RankStatus
from mpidl.report.text import clock, duration, in_words, quantity, time_of_day
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
#: Characters of increasing height, and the same where a terminal has ASCII only.
BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
#: Ratio of the largest to the smallest value from which a curve is drawn in logarithms.
LOGARITHMIC = 20.0


def view(watched: Watched, width: int, height: int | None = None, plain: bool = False) -> Group:
    """Return what a terminal of this width and height shows; without a height, everything.

    `plain` says whether the terminal has only the characters of ASCII.
    """
    head, ranks = [*_head(watched, width), *_ending(watched)], watched.ranks
    if height is None:
        drawn, table = _curve(watched, width, CURVE // 2, plain), _ranks(ranks, width, len(ranks))
        return Group(*head, *drawn, Text(), *table, Text(), *_events(watched, LONG))
    foot = [*_events(watched, EVENTS if height < TALL else 2 * EVENTS), Text("q quits", "dim", justify="right")]
    # One line names the curve, and one the columns.
    room = max(1, height - len(head) - len(foot) - 2)
    least = min(len(ranks) or 1, room - 1)
    rows = max(1, min(CURVE, room - least))
    empty = [Text()] * (room - least - rows)
    return Group(*head, *_curve(watched, width, rows, plain), *_ranks(ranks, width, room - rows), *empty, *foot)


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
        first.append(_text(f"{clock(total)} of training"))
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
        text += f", {clock((whole - epoch) * samples / epoch / rate)} left"
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


# The curve.


def _curve(watched: Watched, width: int, rows: int, plain: bool) -> list[Text]:
    """Return a curve of some lines, after one that says what it is."""
    name, points = watched.curve
    if not points:
        return [_text("no curve yet", "dim"), *[Text()] * rows]
    named = name.replace("iteration.", "").replace("_", " ")
    first, last = points[0], points[-1]
    said = f"{named} {first[1]:.4g} to {last[1]:.4g}, over {last[0]:,.0f} samples"
    lines = curve(points, width, rows, plain)
    return [_text(said, "dim"), *(Text(line, style="cyan", no_wrap=True) for line in lines)]


def curve(points: Sequence[tuple[float, float]], width: int, rows: int, plain: bool = False) -> list[str]:
    """Return a curve as lines of text, the top first.

    Parameters
    ----------
    points : sequence of (float, float)
        Places and values; a run that was resumed has been at some of the places twice.
    width, rows : int
        Columns and lines of the text.
    plain : bool
        Whether only characters of ASCII may be used.
    """
    blocks = PLAIN if plain else BLOCKS
    whole = len(blocks) - 1
    heights = _heights(np.array(points, float).reshape(-1, 2), width, rows * whole)
    return [
        "".join(blocks[max(0, min(whole, height - row * whole))] for height in heights).rstrip()
        for row in reversed(range(rows))
    ]


def _heights(points: np.ndarray, width: int, most: int) -> list[int]:
    """Return the height of the mean value in each column, from 1 to `most`; 0 before the first.

    Columns without a value are on straight lines between others.
    """
    places, values = points[np.isfinite(points).all(axis=1)].T
    if not values.size:
        return []
    first, last = float(places.min()), float(places.max())
    part = (places - first) / (last - first) if last > first else np.ones(len(places))
    column = np.minimum(part * width, width - 1).astype(int)
    number = np.bincount(column, minlength=width)
    known = np.flatnonzero(number)
    means = np.bincount(column, values / number[column])[known]
    low, high = float(means.min()), float(means.max())
    # Halves, so that differences can't overflow.
    scaled = np.log(means) if low > 0 and log(high) - log(low) > log(LOGARITHMIC) else means / 2
    low, high = float(scaled.min()), float(scaled.max())
    drawn = np.interp(range(width), known, scaled)
    height = (drawn - low) / (high - low) if high > low else np.full(width, 0.4 * (len(BLOCKS) - 1) / most)
    heights: list[int] = np.where(np.arange(width) < known[0], 0, 1 + np.rint(height * (most - 1))).astype(int).tolist()
    return heights


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
