"""Ranks of the test's world."""

import pytest


@pytest.fixture
def shared_path(comm, tmp_path):
    """Return one directory for all ranks."""
    return comm.bcast(tmp_path)
