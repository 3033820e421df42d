"""Which rank a signal has killed, by what its launcher wrote."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby

__all__ = ["Deaths", "nodes_as_text", "nodes_from_text"]

#: How Open MPI and Intel MPI name a rank and a signal. MPICH names no rank.
MESSAGES = (
    re.compile(rb"process rank (\d+) with PID \d+ on node \S+ exited on\s+signal (\d+)"),
    re.compile(rb"RANK (\d+) PID \d+ RUNNING AT [^\n]*\n[^\n]*KILLED BY SIGNAL: (\d+)"),
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
    """

    def __init__(self, role: Callable[[int], str]) -> None:
        self._role = role
        self._tail = b""

    def watch(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks as they are."""
        for chunk in chunks:
            self._tail = (self._tail + chunk)[-TAIL:]
            yield chunk

    def told(self) -> str | None:
        """Return a line that names the first rank that a signal killed; None if none was named."""
        matches = sorted(chain.from_iterable(each.finditer(self._tail) for each in MESSAGES), key=re.Match.start)
        if not matches:
            return None
        rank, number = map(int, matches[0].groups())
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"rank {rank} ({self._role(rank)}) was killed by {name}"


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
