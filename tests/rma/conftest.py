"""The ways in which ranks reach each other's memory, for all tests of this directory that ask for one."""

import pytest
from ways import WAYS


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Return a way; in the mixed one, a node has two ranks."""
    if request.param == "mixed":
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "2")
    return request.param
