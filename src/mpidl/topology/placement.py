"""The map of a job: the roles of each host, as lines for a log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from mpidl.topology.roles import Roles

#: The roles that come first in a line, and those that come last.
FIRST, LAST = ("coordinator", "server"), ("worker", "standby")
#: Limits of the lines of a map, and of the runs of numbers in a line.
LINES = 20
RUNS = 6


def placement(roles: Roles) -> list[str]:
    """Return the roles of each host, a line each: ``"node1: coordinator, server 0, workers 0-5"``.

    Consecutive hosts with the same number of each role share a line. If there are too many lines, the last one has the
    number of omitted hosts.
    """
    by_host: dict[str, list[tuple[str, str]]] = {}
    for host, name in zip(roles.hosts, roles.names(), strict=False):
        # The number is "0.1" for "worker 0, partition 1 of 2".
        kind, _, number = re.sub(r", partition (\d+) of \d+", r".\1", name).partition(" ")
        by_host.setdefault(host, []).append((kind, number))
    alike = groupby(by_host.items(), lambda each: sorted(Counter(kind for kind, _ in each[1]).items()))
    groups = [dict(hosts) for _, hosts in alike]
    lines = [_line(hosts) for hosts in groups[:LINES]]
    if left := sum(map(len, groups[LINES:])):
        lines.append(f"and {left} more host{'s' * (left > 1)}")
    return lines


def _line(hosts: dict[str, list[tuple[str, str]]]) -> str:
    """Return the line of hosts with the same number of each role."""
    names = list(hosts)
    parts = []
    others = {kind for roles in hosts.values() for kind, _ in roles} - {*FIRST, *LAST}
    for kind in (*FIRST, *sorted(others), *LAST):
        numbers = [number for roles in hosts.values() for other, number in roles if other == kind]
        if numbers:
            plural = "s" * (len(numbers) > 1 and kind != "standby")
            parts.append(f"{kind}{plural} {_runs(numbers)}".strip())
    where = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} hosts)"
    return f"{where}: {', '.join(parts)}"


def _runs(numbers: Sequence[str]) -> str:
    """Return numbers, such as "3" or "2.0", with consecutive ones as a run: ``"0-3 5"``."""
    runs: list[list[str]] = []
    for number in numbers:
        replica, _, last = number.rpartition(".")
        before = runs[-1][-1] if runs else ""
        if before and before == f"{replica}{'.' * bool(replica)}{int(last) - 1}":
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return " ".join(texts[:RUNS] + ["..."] * (len(texts) > RUNS))
