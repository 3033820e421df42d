"""Ranks of the test's world."""

import dataclasses

import pytest


@pytest.fixture(autouse=True)
def transport_of_runs(request, monkeypatch):
    """Let runs whose transport is "auto" take that of ``--transport``, if it is given."""
    chosen = request.config.getoption("--transport")
    if chosen is None or not request.config.getoption("--with-mpi"):
        return
    from mpidl.runs import ranks

    run = ranks.run

    def run_so(config, *arguments):
        if config.topology.transport == "auto":
            config = dataclasses.replace(config, topology=dataclasses.replace(config.topology, transport=chosen))
        return run(config, *arguments)

    monkeypatch.setattr(ranks, "run", run_so)


@pytest.fixture
def shared_path(comm, tmp_path):
    """Return one directory for all ranks."""
    return comm.bcast(tmp_path)
