"""The page of runs as one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mpidl.errors import UsageError, escaped
from mpidl.extras import require
from mpidl.history import Run
from mpidl.history.defaults import flat, numbers
from mpidl.page import facts, incidents, spent
from mpidl.page.course import Course
from mpidl.page.curves import plots
from mpidl.page.drawing import LOSSES, NAMES, Axis, Canvas, Drawn, axes
from mpidl.page.histogram import histogram
from mpidl.page.timeline import OF_KINDS, SECONDS, timeline
from mpidl.paths import open_regular, whole
from mpidl.version import VERSION

#: What the first bytes of a page have, and of how many.
SIGN, BEGINNING = b'<meta name="generator" content="mpidl report">', 200
#: Why a page has no plots, by the state of its run.
EMPTY = {
    "running": "No record yet: the first is written after run.report seconds of training, or at the first evaluation.",
    "killed": "No record: the run was killed before its first report.",
    "failed": "No record: the run failed before its first report.",
}


def write(runs: Sequence[Run], file: Path, force: bool = False) -> None:
    """Write the page of runs: of one, or of several whose curves are drawn over each other.

    Parameters
    ----------
    runs : sequence of Run
        Those of `mpidl.open`.
    file : Path
        An earlier page is replaced.
    force : bool
        Whether a file that is no such page is replaced, too.

    Raises
    ------
    UsageError
        Bokeh isn't installed, or the file can't be written, or is no page and `force` isn't set.
    """
    require("bokeh", "report")
    if file.exists() and not force and not _is_page(file):
        raise UsageError(f"{file}: exists and is no page of mpidl report, expected --force to replace it")
    text = html(runs)
    with whole(file) as partial:
        partial.write_text(text, encoding="utf-8")


def _is_page(file: Path) -> bool:
    try:
        with open_regular(file) as opened:
            return SIGN in opened.read(BEGINNING)
    except OSError:
        return False


def html(runs: Sequence[Run]) -> str:
    """Return the page of runs."""
    jinja = require("jinja2", "report")
    courses = [Course(run) for run in runs]
    names = _names(runs)
    across = axes(courses)
    drawn, first = _drawn(courses, names, across)
    environment = jinja.Environment(
        loader=jinja.PackageLoader("mpidl.page", ""),
        autoescape=True,
        trim_blocks=True,
        finalize=_shown,
        undefined=jinja.StrictUndefined,
    )
    figures = [facts.figures(course) for course in courses]
    markup = require("markupsafe", "report").Markup
    parts = timeline(runs[0]) if len(runs) == 1 else []
    text: str = environment.get_template("page.html.jinja").render(
        title=names[0] if len(runs) == 1 else f"{len(runs)} runs",
        lines=_lines(runs[0]) if len(runs) == 1 else [],
        notes=[(name, note) for run, name in zip(runs, names, strict=True) for note in run.notes],
        runs=[
            _run(run, name, found, NAMES[place % len(NAMES)])
            for place, (run, name, found) in enumerate(zip(runs, names, figures, strict=True))
        ],
        comparison=facts.compared(figures),
        differing=facts.differing(runs),
        drawn=drawn,
        losses=LOSSES,
        axes=across,
        first=first,
        ranges={name: {"label": axis.label, "range": axis.range} for name, axis in across.items()},
        resumed=any("resume" in incidents.by_lane(run) for run in runs),
        bars=_bars(courses, names),
        activities=spent.ACTIVITIES,
        timeline=parts,
        kinds=OF_KINDS,
        parts=[
            {"begin": each.begin, "milliseconds": 1e3 * SECONDS, "ranks": each.ranks, "kinds": list(OF_KINDS.items())}
            for each in parts
        ],
        empty=EMPTY.get(runs[0].state, "No record."),
        made=f"Made by mpidl {VERSION} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
        **_bokeh([each.figure for each in drawn], markup),
    )
    return text


def _shown(value: Any) -> Any:
    """Return text with escaped control characters; only what is marked as HTML has lines."""
    return escaped(value) if type(value) is str else value


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the names of runs, or their directories where two have the same name."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else str(run.directory) for run in runs]


def _drawn(
    courses: Sequence[Course], names: Sequence[str], across: Mapping[str, Axis]
) -> tuple[list[Drawn], str | None]:
    """Return the plots and the axis that they are drawn over first."""
    if not across:
        return [], None
    first = "iteration.number" if "iteration.number" in across else next(iter(across))
    canvas = Canvas([escaped(name) for name in names], across, first)
    alone = courses[0] if len(courses) == 1 else None
    marks = [] if alone is None else incidents.marks(alone)
    canvas.mark(marks)
    drawn = [canvas.plot(plot) for plot in plots(courses)]
    if alone is not None and (cells := histogram(alone)) is not None:
        drawn.append(canvas.staleness(cells))
    if marks:
        drawn.append(canvas.events(marks))
    for place, each in enumerate(drawn):
        each.figure.name = str(place)
    return drawn, first


def _bokeh(figures: Sequence[Any], markup: Any) -> dict[str, Any]:
    """Return Bokeh's script and the document of figures as parts of the page."""
    if not figures:
        return {"bokeh": "", "document": ""}
    document = require("bokeh.document", "report").Document()
    with document.models.freeze():
        for figure in figures:
            document.add_root(figure)
    encoder = require("bokeh.core.json_encoder", "report")
    content = encoder.serialize_json(document.to_json(deferred=False), pretty=False)
    resources = require("bokeh.resources", "report").Resources(mode="inline", components=["bokeh"], log_level="warn")
    # In a script, only this character could end it.
    return {"bokeh": markup("\n".join(resources.js_raw)), "document": markup(content.replace("<", "\\u003c"))}


def _bars(courses: Sequence[Course], names: Sequence[str]) -> list[spent.Bar]:
    if len(courses) == 1:
        return spent.bars(courses[0])
    return [bar for course, name in zip(courses, names, strict=True) for bar in spent.average(course, name)]


def _lines(run: Run) -> list[str]:
    """Return what the run is, in a line."""
    known = numbers(run.summary)
    sizes = [
        f"{known[name]:.0f} {name if known[name] != 1 else name[:-1]}"
        for name in ("ranks", "servers", "replicas", "partitions")
        if known.get(name)
    ]
    algorithm = (run.summary or {}).get("algorithm") or flat(run.config).get("algorithm.name")
    return [", ".join([str(algorithm), *sizes]) + " on a virtual cluster" * facts.is_virtual(run)]


def _run(run: Run, name: str, figures: Sequence[facts.Figure], colour: str) -> dict[str, Any]:
    keys = facts.configuration(run)
    return {
        "name": name,
        "colour": colour,
        "state": run.state,
        "in_words": facts.STATES.get(run.state, run.state),
        "figures": figures,
        "changed": [key for key in keys if key.default is not None],
        "unchanged": [key for key in keys if key.default is None],
        "origin": facts.origin(run),
        "events": [(_when(event), incidents.text(event)) for event in incidents.latest(run)],
    }


def _when(event: Mapping[str, Any]) -> str:
    """Return when an event happened: the time of day, or that of a virtual run."""
    if event.get("virtual_time") is not None:
        return f"{event['virtual_time']:.4g} s"
    with suppress(KeyError, TypeError, ValueError, OverflowError, OSError):
        return f"{datetime.fromtimestamp(event['time'], UTC):%Y-%m-%d %H:%M:%S} UTC"
    return ""
