"""Timelines made by hand, and what holds of any timeline."""

import numpy as np

from mpidl.tracing import KINDS, RankSpans
from mpidl.tracing.spans import SPAN

#: Spans that overlap by less are one after the other in clocks of nanoseconds.
ROUNDING = 1e-6


def spans(*rows):
    """Return spans, each given as (kind, start, end) and the numbers that it has."""
    found = np.full(len(rows), -1, SPAN)
    for span, (kind, start, end, about) in zip(found, rows, strict=True):
        span["kind"], span["start"], span["end"], span["spent"] = KINDS.index(kind), start, end, end - start
        for name, number in about.items():
            span[name] = number
    return found


def exchange(host="a", other="b", begin=100.0):
    """Return the timelines of a worker and a server: two pushes, their applications, and a fetch of the first."""
    worker = spans(
        ("gradient", begin, begin + 3, {}),
        ("push", begin + 3, begin + 4, {"push": 0, "pusher": 2}),
        ("wait", begin + 4, begin + 5, {}),
        ("fetch", begin + 5, begin + 6, {"clock": 1, "shard": 0, "pusher": 2}),
        ("push", begin + 7, begin + 8, {"push": 1, "pusher": 2}),
    )
    server = spans(
        ("apply", begin + 3.5, begin + 3.75, {"push": 0, "pusher": 2, "shard": 0, "staleness": 0}),
        ("apply", begin + 4, begin + 4.5, {"push": 0, "pusher": 2, "shard": 0, "clock": 1, "staleness": 0}),
        ("apply", begin + 7.5, begin + 8.5, {"push": 1, "pusher": 2, "shard": 0, "clock": 2, "staleness": 1}),
    )
    return [RankSpans(1, "server 0", other, server, 1e-5), RankSpans(2, "worker 0", host, worker)]


def seconds(found, kind, of="spent"):
    """Return the sum over the spans of a kind."""
    own = found.spans[found.spans["kind"] == KINDS.index(kind)]
    return float(own["spent"].sum() if of == "spent" else (own["end"] - own["start"]).sum())


def check(ranks):
    """Check that the spans of a rank never overlap, and that nothing arrives before it has left; return the arrows."""
    pushes, made, arrows = {}, {}, 0
    for rank in ranks:
        own = rank.spans
        assert (own["end"] >= own["start"]).all()
        assert (own["start"][1:] - own["end"][:-1] > -ROUNDING).all(), rank.role
        for span in own[own["kind"] == KINDS.index("push")]:
            pushes.setdefault((span["pusher"], span["push"]), (span, rank))
        for span in own[(own["kind"] == KINDS.index("apply")) & (own["clock"] >= 0)]:
            made[span["shard"], span["clock"]] = span, rank
    for rank in ranks:
        for span in rank.spans[rank.spans["kind"] == KINDS.index("apply")]:
            if (begun := pushes.get((span["pusher"], span["push"]))) is not None:
                arrows += 1
                assert span["end"] >= begun[0]["start"] - rank.error - begun[1].error
        for span in rank.spans[(rank.spans["kind"] == KINDS.index("fetch")) & (rank.spans["clock"] >= 0)]:
            if (found := made.get((span["shard"], span["clock"]))) is not None:
                arrows += 1
                assert span["end"] >= found[0]["start"] - rank.error - found[1].error
    return arrows
