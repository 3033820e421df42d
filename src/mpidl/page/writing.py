"""The text of the page of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import jinja2
from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.models import CustomJS
from bokeh.resources import Resources

from mpidl.errors import escaped
from mpidl.history import Run
from mpidl.history.defaults import flat, numbers
from mpidl.page import facts
from mpidl.page.course import RunCourse
from mpidl.page.curves import histograms, plots
from mpidl.page.drawing import COLOURS, LOSSES, Axis, Canvas, Drawn, axes
from mpidl.page.drawing import timeline as timeline_of
from mpidl.page.timeline import OF_KINDS, timeline
from mpidl.report.text import counted
from mpidl.version import VERSION

#: The states of a run, in words.
STATES = {"stopped": "stopped by a signal, saved"}
#: Why a page has no plots, by the state of its run.
EMPTY = {
    "running": "No record yet: the first is written after run.report seconds of training, or at the first evaluation.",
    "killed": "No record: the run was killed before its first report.",
    "failed": "No record: the run failed before its first report.",
}


def html(runs: Sequence[Run]) -> str:
    """Return the page of runs."""
    courses, alone = [RunCourse(run) for run in runs], len(runs) == 1
    # Of two runs with the same name, their directories.
    names = [run.name for run in runs]
    names = [run.name if names.count(run.name) == 1 else str(run.directory) for run in runs]
    across = axes(courses)
    first = "iteration.number" if "iteration.number" in across else next(iter(across), None)
    drawn = [] if first is None else _drawn(courses, names, across, first)
    parts = [timeline_of(part) for part in timeline(runs[0])] if alone else []
    figures = [facts.figures(course) for course in courses]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mpidl.page", ""),
        autoescape=True,
        trim_blocks=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
    )
    template = environment.get_template("page.html.jinja")
    values: dict[str, Any] = {
        "title": names[0] if alone else f"{len(runs)} runs",
        "lines": [_line(runs[0])] if alone else [],
        "notes": [(name, note) for run, name in zip(runs, names, strict=True) for note in run.notes],
        "runs": [
            _run(run, name, found, COLOURS[place % len(COLOURS)])
            for place, (run, name, found) in enumerate(zip(runs, names, figures, strict=True))
        ],
        "comparison": facts.compared(figures),
        "differing": facts.differing(runs),
        "drawn": drawn,
        "losses": LOSSES,
        "axes": across,
        "first": first,
        "resumed": any("resume" in facts.by_lane(run) for run in runs),
        "bars": facts.bars(courses[0])
        if alone
        else [bar for course, name in zip(courses, names, strict=True) for bar in facts.average(course, name)],
        "activities": facts.ACTIVITIES,
        "timeline": parts,
        "kinds": OF_KINDS,
        "empty": EMPTY.get(runs[0].state, "No record."),
        "made": f"Made by mpidl {VERSION} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
    }
    if not (drawn or parts):
        return template.render(values)
    document = Document()
    with document.models.freeze():
        for place, each in enumerate([*drawn, *parts]):
            each.figure.name = str(place)
            document.add_root(each.figure)
    document.js_on_event("document_ready", CustomJS(code="mpidl.begin()"))
    resources = Resources(mode="inline", log_level="warn")
    text: str = file_html(document, resources, values["title"], template=template, template_variables=values)
    return text


def _shown(value: Any) -> Any:
    """Return text with escaped control characters; only what is marked as HTML has lines."""
    return escaped(value) if type(value) is str else value


def _drawn(courses: Sequence[RunCourse], names: Sequence[str], across: Mapping[str, Axis], first: str) -> list[Drawn]:
    """Return the plots."""
    alone = courses[0] if len(courses) == 1 else None
    marks = {} if alone is None else facts.marks(alone)
    canvas = Canvas([escaped(name) for name in names], across, first, marks)
    drawn = [canvas.plot(plot) for plot in plots(courses)]
    if alone is not None and (found := histograms(alone)) is not None:
        drawn.append(canvas.staleness(found))
    return [*drawn, canvas.events()] if marks else drawn


def _line(run: Run) -> str:
    """Return what the run is."""
    known = numbers(run.summary)
    sizes = [
        counted(int(known[f"{name}s"]), name)
        for name in ("rank", "server", "replica", "partition")
        if known.get(f"{name}s")
    ]
    algorithm = (run.summary or {}).get("algorithm") or flat(run.config).get("algorithm.name")
    return ", ".join([str(algorithm), *sizes]) + " on a virtual cluster" * facts.is_virtual(run)


def _run(run: Run, name: str, figures: Sequence[facts.Figure], colour: str) -> dict[str, Any]:
    return {
        "name": name,
        "colour": colour,
        "state": run.state,
        "in_words": STATES.get(run.state, run.state),
        "figures": figures,
        "changed": [(key, *map(facts.as_text, values)) for key, values in run.changed.items()],
        "unchanged": [(key, facts.as_text(each)) for key, each in flat(run.config).items() if key not in run.changed],
        "origin": facts.origin(run),
        "events": [(_when(event), facts.in_short(event)) for event in facts.latest(run)],
    }


def _when(event: Mapping[str, Any]) -> str:
    """Return when an event happened: the time of day, or that of a virtual run."""
    if event.get("virtual_time") is not None:
        return f"{event['virtual_time']:.4g} s"
    with suppress(KeyError, TypeError, ValueError, OverflowError, OSError):
        return f"{datetime.fromtimestamp(event['time'], UTC):%Y-%m-%d %H:%M:%S} UTC"
    return ""
