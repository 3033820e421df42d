"""Reports as lines of text that fit a width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mpidl.report.text import loss

#: Importance of parts that are kept, and of those that are omitted first.
FIRST, LAST = 10, 0
#: Names of the figures of a report that are shown, besides those of evaluations.
SHOWN = {"time", "epoch", "train_loss", "samples_per_second", "server_load", "staleness", "iteration"}


class Title(msgspec.Struct):
    """The properties of a run before it begins.

    Attributes
    ----------
    text : str
        The run's directory and the size of its model.
    epochs : float
        Length of the run.
    samples : int
        Samples in an epoch.
    accuracy : str
        Name of the fraction of correct samples.
    split : str
        The data of evaluations during training: "test" or "validation".
    iterates : bool
        Whether the algorithm has a coordinator that iterates; epochs then say little.
    """

    text: str
    epochs: float
    samples: int
    accuracy: str = "accuracy"
    split: str = "test"
    iterates: bool = False

    def shown(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """Return the figures of a report that are shown."""
        return {name: value for name, value in report.items() if name in SHOWN or name.startswith(f"{self.split}_")}


class LinePart(NamedTuple):
    """A part of a line, of more or less importance, in its forms: the longest first."""

    importance: int
    forms: list[str]


def part(importance: int, form: str, value: float | None) -> LinePart:
    """Return a part with a formatted value; one without text if there is none."""
    return LinePart(importance, [] if value is None else [form.format(value)])


def fit(parts: Iterable[LinePart], width: int) -> str:
    """Return a line of at most `width` characters; the least important parts are shortened, or omitted, first."""
    kept = [LinePart(importance, list(forms)) for importance, forms in parts if forms]
    while kept:
        for gap in ("  ", " "):
            line = gap.join(each.forms[0] for each in kept)
            if len(line) <= width:
                return line
        least = min(reversed(kept), key=lambda each: each.importance)
        shorter = LinePart(least.importance, least.forms[1:])
        kept = [shorter if each is least else each for each in kept if each is not least or shorter.forms]
    return ""


def state(
    report: Mapping[str, Any], title: Title, rate: float | None, left: str | None, in_log: bool
) -> list[LinePart]:
    """Return the parts of a line about the state of a run.

    `rate` is the samples per second, and `left` the time left as text. A log has lines about evaluations, and a bar
    shows where the run is.
    """
    staleness, load = report.get("staleness"), report.get("server_load")
    servers = [] if not staleness or title.iterates else [f"staleness {staleness['mean']:.1f}"]
    if servers and load is not None:
        servers.insert(0, f"{servers[0]}, server busy {100 * load:.0f} %")
    evaluated = 3 if in_log else 5
    return [
        _where(report, title, FIRST if in_log else LAST),
        part(LAST if title.iterates else 8, _speed(rate), rate),
        _objective(report) if title.iterates else part(7, "loss {:.4g}", report.get("train_loss")),
        part(evaluated, title.accuracy + " {:.3f}", report.get(f"{title.split}_accuracy")),
        *_metrics(report, title, evaluated),
        LinePart(4, servers),
        LinePart(1 if title.iterates else 9, [left] if left else []),
    ]


def tested(report: Mapping[str, Any], title: Title, width: int) -> list[str]:
    """Return lines for a log about an evaluation."""
    split, where = title.split, _where(report, title, FIRST)
    named = "objective {:.4g}" if title.iterates else "loss {:.4g}"
    losses = part(9, named, _loss(report, title)).forms
    losses += part(9, split + " {:.4g}", report.get(f"{split}_loss")).forms
    parts = [
        LinePart(FIRST, where.forms[-1:]),
        part(LAST, _speed(report.get("samples_per_second")), report.get("samples_per_second")),
        LinePart(9, [", ".join(losses)] if losses else []),
        part(8, title.accuracy + " {:.4f}", report.get(f"{split}_accuracy")),
    ]
    return _with_metrics(parts, _metrics(report, title), width)


def evaluation(report: Mapping[str, Any], title: Title, time: str, width: int) -> list[str]:
    """Return lines above a bar about an evaluation, `time` after the beginning of the run."""
    split = title.split
    accuracy = part(9, f"{split} {title.accuracy} {{:.4f}}", report.get(f"{split}_accuracy")).forms
    losses = part(9, "loss {:.4g}" if accuracy else f"{split} loss {{:.4g}}", report.get(f"{split}_loss")).forms
    first = f"iteration {_number(report)}" if title.iterates else f"epoch {report['epoch']:5.1f}"
    named = "objective {:.4g}" if title.iterates else "train loss {:.4g}"
    found = [*accuracy, *losses]
    parts = [
        LinePart(FIRST, [first]),
        LinePart(9, [", ".join(found)] if found else []),
        part(8, named, _loss(report, title)),
        LinePart(LAST, [f"after {time}"]),
    ]
    return _with_metrics(parts, _metrics(report, title), width)


def _speed(rate: float | None) -> str:
    """Return the format of a number of samples per second, which may be less than one."""
    return "{:.0f}/s" if not rate or rate >= 10 else "{:.2g}/s"


def _where(report: Mapping[str, Any], title: Title, importance: int) -> LinePart:
    if not title.iterates:
        return LinePart(importance, [f"epoch {report['epoch']:.1f}"])
    iteration = f"iteration {_number(report)}"
    evaluations = (report.get("iteration") or {}).get("total_evaluations")
    return LinePart(FIRST, [*([] if evaluations is None else [f"{iteration}, {evaluations} evaluations"]), iteration])


def _number(report: Mapping[str, Any]) -> int:
    return int((report.get("iteration") or {}).get("number", 0))


def _loss(report: Mapping[str, Any], title: Title) -> float | None:
    """Return the objective of the last iteration, or the training loss."""
    return (report.get("iteration") or {}).get("objective") if title.iterates else report.get("train_loss")


def _objective(report: Mapping[str, Any]) -> LinePart:
    if not (iteration := report.get("iteration")):
        return LinePart(FIRST + 1, [])
    objective = f"objective {loss(iteration['objective'])}"
    return LinePart(FIRST + 1, [f"{objective}, gradient norm {loss(iteration['gradient_norm'])}", objective])


def _metrics(report: Mapping[str, Any], title: Title, importance: int = 7) -> list[LinePart]:
    """Return parts for a run's own metrics and for the terms of its loss."""
    split = f"{title.split}_"
    names = [name.removeprefix(split) for name in report if name.startswith(split)]
    own = [name for name in names if name not in ("loss", "accuracy")]
    return [part(importance, name.replace("_", " ") + " {:.4g}", report[split + name]) for name in own]


def _with_metrics(parts: Sequence[LinePart], metrics: Sequence[LinePart], width: int) -> list[str]:
    """Return a line, with lines for the metrics if they don't fit into it."""
    texts = [text for each in metrics for text in each.forms]
    line = fit([*parts, *metrics], width)
    if all(text in line for text in texts):
        return [line]
    # Breaks between metrics only.
    whole = "  ".join(text.replace(" ", "\N{NO-BREAK SPACE}") for text in texts)
    wrapped = textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return [fit(parts, width), *(line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped)]
