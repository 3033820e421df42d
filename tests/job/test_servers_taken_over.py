"""Jobs whose ranks another process can take over, and those where a line says why not."""

import pytest

from mpidl.config import from_dict
from mpidl.job.build import build
from mpidl.job.footprint import capacity_of, footprints
from mpidl.job.placed import place
from mpidl.job.takeover import fixed
from mpidl.metrics.figures import Figures
from mpidl.topology.roles import assign
from mpidl.topology.takeover import Fixed
from mpidl.transport.routes import Routes

LAYER = {"type": "dense", "units": 10}
THROUGH_OTHERS = assign([0] * 4 + [1] * 4, servers=1, relay=True)


def config(name, algorithm=(), **sections):
    sections = {"data": {"source": "digits"}, "model": {"layer": [LAYER]}, "device": {"kind": "cpu"}} | sections
    return from_dict({"algorithm": {"name": name, **dict(algorithm)}, **sections})


def test_a_rule_of_matrices_can_be_taken_over():
    assert fixed(config("downpour", server={"rule": "muon"})) == Fixed()


@pytest.mark.parametrize("name", ["downpour", "easgd", "eamsgd", "aeasgd", "dynsgd", "agn", "adag", "ssp"])
def test_a_server_that_handles_each_push_by_itself_can_be_taken_over(name):
    assert fixed(config(name)) == Fixed()


@pytest.mark.parametrize(
    ("name", "sections", "key"),
    [
        ("softsync", {}, "algorithm.name: softsync"),
        ("backup_sync", {}, "algorithm.name: backup_sync"),
        ("sandblaster", {}, "algorithm.name: sandblaster"),
        ("sync", {}, "algorithm.name: sync"),
        ("downpour", {"run": {"deterministic": True}}, "run.deterministic: true"),
        ("downpour", {"topology": {"survive": "off"}}, "topology.survive: off"),
        ("downpour", {"topology": {"transport": "messages"}}, "topology.transport: messages"),
        ("downpour", {"algorithm": {"wire_fetch": "int8"}}, "algorithm.wire_fetch: int8"),
        ("dcasgd", {"algorithm": {"adaptive": True}}, "algorithm.name: dcasgd"),
    ],
)
def test_a_line_says_what_prevents_it(name, sections, key):
    causes = fixed(config(name, sections.pop("algorithm", {}), **sections))
    found = causes.all or causes.servers
    assert found == key or found.startswith((f"{key},", f"{key} "))
    assert "\n" not in found


@pytest.mark.parametrize(
    ("name", "sections", "roles", "what"),
    [
        ("easgd", {}, assign([0] * 6, servers=1), None),
        ("softsync", {}, None, None),  # All but its servers can.
        ("downpour", {"topology": {"partitions": 2}}, None, "topology.partitions: 2,"),
        ("downpour", {"topology": {"relay": True}}, THROUGH_OTHERS, "workers push through other ranks"),
        ("downpour", {"data": {"source": "digits", "split": "label:2"}}, None, "data.split: 'label:2',"),
        ("backup_sync", {}, None, "algorithm.name: backup_sync, workers wait for each other's pushes"),
        ("sandblaster", {}, None, "algorithm.name: sandblaster exchanges by "),
    ],
)
def test_a_line_says_what_prevents_it_for_all_ranks(name, sections, roles, what):
    found = fixed(config(name, **sections), roles).all
    assert found is None if what is None else found.startswith(what)


def test_processes_of_other_nodes_cannot():
    assert "2 nodes" in fixed(config("downpour"), nodes=2).all


@pytest.mark.parametrize(("name", "kept", "of_policy"), [("downpour", 2, 0), ("softsync", 0, 1)])
def test_the_vectors_of_the_rule_lie_in_the_memory_of_the_rank_and_are_counted_once(name, kept, of_policy):
    placed = place(build(config(name, server={"rule": "adam"})), 2)
    capacity, roles = capacity_of(placed, 1, Figures(())), assign([0] * 4, servers=1)
    assert len(capacity.vectors) == 1 + kept
    (found,) = (footprints(placed, Routes(roles, capacity))[rank] for rank in roles.servers)
    vector = placed.layout.size * placed.job.dtype.itemsize
    assert (found.parameters, found.state) == (vector, (2 + of_policy) * vector)
    assert found.exchange < 20 * vector
