"""Which rank a signal has killed, or which host is lost, by what the launcher wrote."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby

__all__ = ["Deaths", "nodes_as_text", "nodes_from_text"]

#: How Open MPI and Intel MPI name a rank, its host and a signal. MPICH names no rank.
KILLED = (
    re.compile(rb"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<signal>\d+)"),
    re.compile(rb"RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+)\n[^\n]*KILLED BY SIGNAL: (?P<signal>\d+)"),
)
#: How Open MPI names a host that its launcher no longer reaches, or where it has lost its daemon.
LOST = (
    re.compile(rb"Remote daemon: +\S+ on node (?P<host>\S+)"),
    re.compile(rb"Remote host: +(?P<host>\S+)"),
)
#: Bytes at the end of a job's stderr in which the message stands.
TAIL = 1 << 14
#: Characters of the longest text of nodes.
LONGEST = 4000


class Deaths:
    """Looks on while a job's stderr passes.

    Parameters
    ----------
    role : callable
        Returns what a rank does, such as "worker 0".
    several : callable
        Tells whether the job has several hosts, which lines then name.
    """

    def __init__(self, role: Callable[[int], str], several: Callable[[], bool] = lambda: False) -> None:
        self._role, self._several = role, several
        self._tail = b""

    def watch(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks as they are."""
        for chunk in chunks:
            self._tail = (self._tail + chunk)[-TAIL:]
            yield chunk

    def told(self) -> str | None:
        """Return a line on the first rank that a signal killed, or host that was lost; None if none was named."""
        matches = chain.from_iterable(each.finditer(self._tail) for each in (*KILLED, *LOST))
        first = min(matches, key=re.Match.start, default=None)
        if first is None:
            return None
        host = first["host"].decode(errors="replace")
        if first.re in LOST:
            return f"host {host} is lost, or the launcher's daemon there"
        rank, number = int(first["rank"]), int(first["signal"])
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        place = f" on {host}" if self._several() else ""
        return f"rank {rank} ({self._role(rank)}){place} was killed by {name}"


def nodes_as_text(nodes: list[int]) -> str | None:
    """Return the node of each rank as a short text; None if there is no short one."""
    text = " ".join(f"{node}x{len(list(ranks))}" for node, ranks in groupby(nodes))
    return text if len(text) <= LONGEST else None


def nodes_from_text(text: str) -> list[int]:
    """Return the node of each rank."""
    nodes: list[int] = []
    for part in text.split():
        node, ranks = part.split("x")
        nodes += [int(node)] * int(ranks)
    return nodes
