"""How long a rank sleeps."""

import math
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(
    ("longest", "slept"), [(math.inf, 0.005), (1.0, 0.005), (0.001, 0.001), (0.0, 0.0), (-1.0, 0.0)]
)
def test_a_pause_is_no_longer_than_whoever_waits_wants(longest, slept):
    from mpidl.rma.backoff import Backoff

    found = []
    comm, memory = SimpleNamespace(Iprobe=lambda source, tag: False), SimpleNamespace(serve=lambda: False)
    backoff = Backoff(comm, memory, SimpleNamespace(sleep=found.append, clear=list), 0.005)
    for _ in range(10):
        backoff.pause(longest)
        if found:
            break
    assert found == [slept]
