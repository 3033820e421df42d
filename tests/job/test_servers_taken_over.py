"""Jobs whose servers' ranks another process can take over, and those where a line says why not."""

from dataclasses import replace

import pytest

from mpidl.config import from_dict
from mpidl.job.build import build
from mpidl.job.callbacks import Callbacks
from mpidl.job.footprint import capacity_of, footprints
from mpidl.job.job import Script
from mpidl.job.placed import place
from mpidl.job.takeover import obstacle, obstacle_to_coordinator
from mpidl.metrics.figures import Figures
from mpidl.topology.roles import assign
from mpidl.transport.routes import Routes

LAYER = {"type": "dense", "units": 10}


def config(name, algorithm=(), **sections):
    sections = {"data": {"source": "digits"}, "model": {"layer": [LAYER]}, "device": {"kind": "cpu"}} | sections
    return from_dict({"algorithm": {"name": name, **dict(algorithm)}, **sections})


@pytest.mark.parametrize("name", ["downpour", "easgd", "eamsgd", "aeasgd", "dynsgd", "agn", "adag", "ssp"])
def test_a_server_that_handles_each_push_by_itself_can_be_taken_over(name):
    assert obstacle(config(name)) is None


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
    found = obstacle(config(name, sections.pop("algorithm", {}), **sections))
    assert found == key or found.startswith((f"{key},", f"{key} "))
    assert "\n" not in found


def test_processes_of_other_nodes_cannot():
    assert "2 nodes" in obstacle(config("downpour"), nodes=2)


@pytest.mark.parametrize(("name", "kept"), [("downpour", 2), ("softsync", 0)])
def test_the_vectors_of_the_rule_lie_in_the_memory_of_the_rank_and_are_counted_once(name, kept):
    placed = place(build(config(name, server={"rule": "adam"})), 2)
    capacity, roles = capacity_of(placed, 1, Figures(())), assign([0] * 4, servers=1)
    assert len(capacity.vectors) == 1 + kept
    (found,) = (footprints(placed, Routes(roles, capacity))[rank] for rank in roles.servers)
    vector = placed.layout.size * placed.job.dtype.itemsize
    assert (found.parameters, found.state) == (vector, 2 * vector)
    assert found.exchange < 20 * vector


@pytest.mark.parametrize(
    ("name", "sections", "key"),
    [
        ("downpour", {}, None),
        ("sync", {}, None),
        ("sandblaster", {}, "algorithm.name: sandblaster"),
        ("downpour", {"run": {"deterministic": True}}, "run.deterministic: true"),
    ],
)
def test_a_line_says_what_prevents_the_takeover_of_a_coordinator(name, sections, key):
    found = obstacle_to_coordinator(build(config(name, **sections)))
    assert found == key or found.startswith(f"{key},")


def test_callbacks_prevent_the_takeover_of_a_coordinator():
    job = replace(build(config("downpour")), script=Script(callbacks=Callbacks([print])))
    assert obstacle_to_coordinator(job).startswith("callbacks:")
