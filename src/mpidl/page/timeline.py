"""Two short parts of the timeline of a traced run: its beginning, and where the workers computed least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpidl.errors import escaped
from mpidl.history import Run
from mpidl.tracing import KINDS, RankSpans, read
from mpidl.tracing.files import DIRECTORY

#: Colours of the kinds of spans, in the order of these, by their names in page.css.
OF_KINDS = {
    "gradient": "blue", "step": "purple", "push": "orange", "fetch": "sky", "wait": "vermillion", "apply": "green",
    "evaluate": "yellow", "save": "grey", "recover": "text",
}  # fmt: skip
#: Seconds of a part, and the pixels of its width, each of which shows one of the spans that are shorter.
SECONDS, PIXELS = 2.0, 700
#: Steps in which the worst part is searched, for each part's length.
STEPS = 20
#: The most workers that are shown, the slowest, and other ranks.
WORKERS, OTHERS = 16, 8
GRADIENT = KINDS.index("gradient")


class Excerpt(NamedTuple):
    """A part of a timeline.

    Attributes
    ----------
    title : str
    begin : float
        Seconds after the run's first span.
    ranks : dict of str to np.ndarray
        Label of each rank, and a row for each of its spans: start and length in seconds after `begin`, and the number
        of the kind.
    """

    title: str
    begin: float
    ranks: dict[str, np.ndarray]


def timeline(run: Run) -> list[Excerpt]:
    """Return the parts of a run's timeline; none if the run has not been traced."""
    if not (run.directory / DIRECTORY).is_dir():
        return []
    ranks = [each for each in read(run.directory) if each.spans.size]
    if not ranks:
        return []
    first = min(float(each.spans["start"].min()) for each in ranks)
    last = max(float(each.spans["end"].max()) for each in ranks)
    begins = [(f"The first {SECONDS:g} s", first)]
    if last - first > 2 * SECONDS:
        title = f"The worst {SECONDS:g} s, in which the workers computed least"
        begins.append((title, _worst(ranks, first + SECONDS)))
    shown = {escaped(f"{each.role} (rank {each.rank})"): each.spans for each in _shown(ranks)}
    return [
        Excerpt(title, begin - first, {label: _within(spans, begin) for label, spans in shown.items()})
        for title, begin in begins
    ]


def _shown(ranks: Sequence[RankSpans]) -> list[RankSpans]:
    """Return the ranks that are shown: of many workers those that have computed fewest gradients."""
    workers = [each for each in ranks if each.role.startswith("worker")]
    slowest = sorted(workers, key=lambda each: int((each.spans["kind"] == GRADIENT).sum()))[:WORKERS]
    others = [each for each in ranks if not each.role.startswith("worker")][:OTHERS]
    return sorted([*slowest, *others], key=lambda each: each.rank)


def _worst(ranks: Sequence[RankSpans], first: float) -> float:
    """Return the beginning of the part, from `first` on, in which all ranks computed gradients for the least time."""
    gradients = [each.spans[each.spans["kind"] == GRADIENT] for each in ranks]
    last = max((float(spans["end"].max()) for spans in gradients if spans.size), default=first)
    first = max([first, *(_kept(each) for each in ranks if each.dropped)])
    edges = np.arange(first, max(last, first + SECONDS) + SECONDS / STEPS, SECONDS / STEPS)
    computed = np.zeros(len(edges))
    for spans in gradients:
        # The time in gradients before each edge: whole spans, and the beginning of the one under way.
        lengths = np.append(0.0, np.cumsum(spans["end"] - spans["start"]))
        begun = np.searchsorted(spans["start"], edges)
        under_way = np.maximum(np.append(0.0, spans["end"])[begun] - edges, 0.0)
        computed += lengths[begun] - under_way
    least = int(np.argmin(computed[STEPS:] - computed[:-STEPS]))
    return float(edges[least])


def _kept(rank: RankSpans) -> float:
    """Return from when on all spans of a rank are there: after the longest time without one."""
    without = rank.spans["start"][1:] - rank.spans["end"][:-1]
    return float(rank.spans["start"][1 + int(np.argmax(without))]) if without.size else 0.0


def _within(spans: np.ndarray, begin: float) -> np.ndarray:
    """Return the rows of a part for the spans of a rank."""
    spans = spans[(spans["end"] > begin) & (spans["start"] < begin + SECONDS)]
    start = np.maximum(spans["start"] - begin, 0.0)
    length = np.minimum(spans["end"] - begin, SECONDS) - start
    # Of spans shorter than a pixel, the longest in each.
    pixel = SECONDS / PIXELS
    order = np.lexsort((-length, (start / pixel).astype(int)))
    longest = order[np.diff((start[order] / pixel).astype(int), prepend=-1) > 0]
    chosen = np.union1d(np.flatnonzero(length >= pixel), longest)
    return np.column_stack([start, length, spans["kind"]])[chosen]
