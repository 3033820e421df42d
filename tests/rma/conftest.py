"""The ways in which ranks reach each other's memory, for all tests of this directory that ask for one."""

import numpy as np
import pytest
from ways import WAYS, transport_of_workers


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Return a way; in the mixed one, a node has two ranks."""
    if request.param == "mixed":
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "2")
    return request.param


@pytest.fixture(params=["windows", "messages", "mixed"])
def transport_way(request, monkeypatch):
    """Return the way of a transport; in the mixed one, a node has two ranks."""
    if request.param == "mixed":
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "2")
    return request.param


@pytest.fixture
def transport(comm, transport_way):
    """Return a transport whose first rank coordinates, and the others work."""
    with transport_of_workers(comm, transport_way) as opened:
        yield opened


@pytest.fixture
def requests(monkeypatch):
    """Return the requests that this rank sends from now on: the rank, and the operation."""
    from mpidl.rma.requests import RequestKind, RequestTag
    from mpidl.rma.sends import Sends

    found, start = [], Sends.start

    def note(self, values, rank, tag, *lent):
        if tag == RequestTag.REQUEST:
            found.append((rank, RequestKind(int(values[:8].view(np.int64)[0]))))
        start(self, values, rank, tag, *lent)

    monkeypatch.setattr(Sends, "start", note)
    return found
