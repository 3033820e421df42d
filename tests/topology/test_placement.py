"""The map of a job: lines for its hosts."""

import pytest
from msgspec.structs import replace

from mpidl.topology.placement import LINES, placement
from mpidl.topology.roles import assign


@pytest.mark.parametrize(
    ("hosts", "servers", "partitions", "standby", "lines"),
    [
        ("a a a a", 1, 1, 0, ["a: coordinator, server 0, workers 0-1"]),
        ("a a b b", 1, 1, 0, ["a: coordinator, worker 0", "b: server 0, worker 1"]),
        ("a a", 0, 1, 0, ["a: coordinator, worker 0"]),
        ("a a a a a", 0, 2, 0, ["a: coordinator, workers 0.0-0.1 1.0-1.1"]),
        ("a a a b b", 0, 4, 0, ["a: coordinator, workers 0.0-0.1", "b: workers 0.2-0.3"]),
        ("a a a a a b b", 0, 3, 0, ["a: coordinator, workers 0.0-0.2 1.2", "b: workers 1.0-1.1"]),
        (
            "a a b c d d", 1, 1, 1,
            ["a: coordinator, worker 0", "b to c (2 hosts): workers 1-2", "d: server 0, standby 0"],
        ),
    ],
)  # fmt: skip
def test_the_roles_of_each_host(hosts, servers, partitions, standby, lines):
    names = tuple(hosts.split())
    assert placement(replace(assign(names, servers, partitions, standby), hosts=names)) == lines


def test_relays_are_on_the_map():
    names = ("a",) * 2 + ("b",) * 4 + ("c",) * 4
    lines = placement(replace(assign(names, 1, relay=True), hosts=names))
    assert lines == ["a: coordinator, worker 0", "b: server 0, workers 1-3", "c: relay 0, workers 4-6"]


def test_many_hosts_are_a_few_lines():
    names = tuple(f"h{rank // 8}" for rank in range(8 * 1000))
    lines = placement(replace(assign(names, 3), hosts=names))
    assert lines[-1] == "h4 to h999 (996 hosts): workers 28-7995"
    odd = tuple(f"h{host}" for host in range(100) for _ in range(1 + host % 2))
    lines = placement(replace(assign(odd, 0), hosts=odd))
    assert len(lines) == LINES + 1
    assert lines[-1] == f"and {100 - LINES} more hosts"
