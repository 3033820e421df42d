"""Timelines in the Trace Event Format of Chrome, which Perfetto opens too.

Each rank is a thread, each host a process. A span is a complete event; its thread duration is the time without that in
which other ranks had the core. Arrows are flow events: from a push to its application on each shard, and from the
application that has made a shard's clock to the fetches that have brought it. Counters are the staleness of the pushes
to a server, and the number of pushes that it hasn't applied.

T. Sanders et al., Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpidl.paths import whole
from mpidl.tracing.files import RankSpans
from mpidl.tracing.spans import KINDS

PUSH, FETCH, APPLY = (KINDS.index(name) for name in ("push", "fetch", "apply"))
#: Events that are encoded at a time.
MANY = 10_000
#: The numbers of a span that tell what it is about.
ABOUT = ("push", "clock", "shard", "pusher", "staleness")

#: An event and its time in seconds.
Timed = tuple[float, dict[str, Any]]


def write(runs: Mapping[str, Sequence[RankSpans]], file: Path) -> None:
    """Write the timelines of the ranks of runs, by name, into a file, compressed if its name ends in ``.gz``.

    Raise UsageError if it can't be written.
    """
    with whole(file) as partial, (gzip.open if file.suffix == ".gz" else open)(partial, "wb") as out:
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        remaining, between = iter(events(runs)), b""
        while some := list(islice(remaining, MANY)):
            out.write(between + msgspec.json.encode(some)[1:-1])
            between = b",\n"
        out.write(b"\n]}\n")


def events(runs: Mapping[str, Sequence[RankSpans]]) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace: names of processes and threads, then all others in the order of time.

    Each run begins at time 0.
    """
    found: list[Timed] = []
    arrows, processes = count(), count(1)
    for run, ranks in runs.items():
        hosts = dict(zip(dict.fromkeys(each.host for each in ranks), processes, strict=False))
        for host, pid in hosts.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{run}: {host}"}}
        for each in ranks:
            name, place = f"{each.role} (rank {each.rank}, {each.host})", {"pid": hosts[each.host], "tid": each.rank}
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": each.rank}}
        begun = min((float(each.spans["start"].min()) for each in ranks if each.spans.size), default=0.0)
        lines = _Lines(ranks, hosts)
        found += ((at - begun, event) for at, event in chain(lines.spans(), lines.arrows(arrows), lines.counters()))
    order = np.argsort(np.fromiter((at for at, _ in found), float, len(found)), kind="stable")
    for number in order.tolist():
        at, event = found[number]
        yield {"ts": _microseconds(at), **event}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


class _Lines:
    """The spans of all ranks, as events with their times in seconds."""

    def __init__(self, ranks: Sequence[RankSpans], hosts: dict[str, int]) -> None:
        self._ranks = ranks
        self._places = [{"pid": hosts[each.host], "tid": each.rank} for each in ranks]
        self._pushes, self._applied = dict[tuple[int, int], Any](), dict[tuple[int, int, int], Any]()
        self._made: dict[tuple[int, int], Any] = {}
        for number, each in enumerate(ranks):
            self._find(number, each.spans)

    def _find(self, number: int, spans: np.ndarray) -> None:
        """Find the last span of each push and of each of its applications, and the one that has made each clock."""
        for span in spans[(spans["kind"] == PUSH) & (spans["push"] >= 0)]:
            self._pushes[int(span["pusher"]), int(span["push"])] = number, span
        for span in spans[spans["kind"] == APPLY]:
            shard = int(span["shard"])
            self._applied[int(span["pusher"]), int(span["push"]), shard] = number, span
            self._made[shard, int(span["clock"])] = number, span

    def spans(self) -> Iterator[Timed]:
        for each, place in zip(self._ranks, self._places, strict=True):
            for span in each.spans:
                about = {name: int(span[name]) for name in ABOUT if span[name] >= 0}
                start, length = float(span["start"]), float(span["end"] - span["start"])
                kind = KINDS[span["kind"]]
                yield start, {
                    "ph": "X", "name": kind, "cat": kind, "dur": _microseconds(length),
                    "tdur": _microseconds(float(span["spent"])), **place, "args": about,
                }  # fmt: skip

    def arrows(self, numbers: Iterator[int]) -> Iterator[Timed]:
        pairs = (("push", self._pushes[key[:2]], end) for key, end in self._applied.items() if key[:2] in self._pushes)
        for name, (source, first), (target, last) in chain(pairs, self._brought()):
            start = float(first["start"])
            flow = {"cat": "exchange", "name": name, "id": next(numbers)}
            yield start, {"ph": "s", **flow, **self._places[source]}
            # In the span that it points to, and not before its beginning.
            yield max(start, float(last["start"])), {"ph": "f", "bp": "e", **flow, **self._places[target]}

    def _brought(self) -> Iterator[tuple[str, Any, Any]]:
        for number, each in enumerate(self._ranks):
            spans = each.spans
            for span in spans[(spans["kind"] == FETCH) & (spans["clock"] >= 0)]:
                made = self._made.get((int(span["shard"]), int(span["clock"])))
                if made is not None:
                    yield "fetch", made, (number, span)

    def counters(self) -> Iterator[Timed]:
        """Yield the staleness of the pushes to each server, and the number of pushes that it hasn't applied."""
        changes: dict[int, list[tuple[float, int]]] = {}
        for (pusher, push, _), (number, span) in self._applied.items():
            role, place = self._ranks[number].role, self._places[number]
            yield float(span["end"]), _counter(f"staleness, {role}", place, max(0, int(span["staleness"])))
            if (pusher, push) in self._pushes:
                changes.setdefault(number, []).append((float(span["end"]), -1))
                changes[number].append((min(float(self._pushes[pusher, push][1]["start"]), float(span["end"])), 1))
        for number, own in changes.items():
            yield from _summed(f"queue, {self._ranks[number].role}", self._places[number], sorted(own))


def _counter(name: str, place: dict[str, int], value: int) -> dict[str, Any]:
    return {"ph": "C", "name": name, **place, "args": {"value": value}}


def _summed(name: str, place: dict[str, int], changes: Iterable[tuple[float, int]]) -> Iterator[Timed]:
    total = 0
    for at, change in changes:
        total += change
        yield at, _counter(name, place, max(0, total))
