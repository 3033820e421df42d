"""How long a rank sleeps."""

import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(
    ("longest", "slept"), [(math.inf, 0.005), (1.0, 0.005), (0.001, 0.001), (0.0, 0.0), (-1.0, 0.0)]
)
def test_a_pause_is_no_longer_than_whoever_waits_wants(longest, slept):
    from mpidl.rma.backoff import Backoff

    found = []
    comm, memory = SimpleNamespace(Iprobe=lambda source, tag: False), SimpleNamespace(serve=lambda: False)
    backoff = Backoff(comm, memory, SimpleNamespace(sleep=found.append, clear=list, messages_wake=False), 0.005)
    for _ in range(10):
        backoff.pause(longest)
        if found:
            break
    assert found == [slept]


@pytest.mark.parametrize("looks", [0, 1, 7])
def test_a_rank_attends_to_messages_itself_until_it_has_what_it_waits_for(looks):
    from mpidl.rma.backoff import Backoff

    events = []

    @contextmanager
    def attended():
        events.append("attends")
        yield
        events.append("ends")

    comm = SimpleNamespace(Iprobe=lambda source, tag: False)
    memory = SimpleNamespace(serve=lambda: events.append("look"), attended=attended)
    doorbells = SimpleNamespace(sleep=lambda seconds: True, clear=list, messages_wake=True)
    Backoff(comm, memory, doorbells, 0.005).until(lambda: events.count("look") == looks)
    assert events == ["attends", *["look"] * looks, "ends"]


@pytest.mark.parametrize("messages_wake", [True, False])
def test_a_rank_that_messages_wake_looks_once_before_it_sleeps(messages_wake):
    from mpidl.rma.backoff import LOOKS, Backoff

    events = []
    comm = SimpleNamespace(Iprobe=lambda source, tag: False)
    memory = SimpleNamespace(serve=lambda: events.append("look"))
    doorbells = SimpleNamespace(sleep=lambda seconds: events.append("sleep"), clear=list, messages_wake=messages_wake)
    backoff = Backoff(comm, memory, doorbells, 0.005)
    while "sleep" not in events:
        backoff.pause()
    assert events.count("look") == (1 if messages_wake else 1 + LOOKS)
