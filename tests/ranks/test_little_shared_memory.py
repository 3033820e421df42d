"""Where shared memory has no room for all that servers keep, a job runs, and its servers' ranks can't be taken over."""

import pytest


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("fits", [True, False])
def test_the_state_of_the_rule_stays_outside(comm, shared_path, monkeypatch, capfd, fits):
    from mpidl.config import from_dict
    from mpidl.errors import MpidlError
    from mpidl.job.build import build
    from mpidl.rma import transport
    from mpidl.rma.transport import Transport
    from mpidl.runs.ranks import run

    needed, kept = [], []
    parameters = 65 * 500 + 501 * 10

    def check_free(directory, size, *texts):
        needed.append(size)
        if len(needed) == 1 and not fits:
            raise MpidlError("no room")

    def making(self, *given, **options):
        make(self, *given, **options)
        kept.extend(self.capacity.kept)

    make = Transport.__init__
    monkeypatch.setattr(transport, "check_free", check_free)
    monkeypatch.setattr(Transport, "__init__", making)
    values = {
        "run": {"dir": str(shared_path), "epochs": 1},
        "data": {"source": "digits"},
        "model": {"layer": [{"type": "dense", "units": 500}, {"type": "dense", "units": 10}]},
        "algorithm": {"name": "downpour"},
        "server": {"rule": "adam", "rate": 0.001},
        "device": {"kind": "cpu"},
    }
    summary = run(config := from_dict(values), lambda: build(config), comm)
    assert summary["samples"] > 0
    if fits:
        assert (kept, len(needed)) == (["first_moment", "second_moment"], 1)
    else:
        assert kept == []
        assert needed[0] - needed[1] >= 2 * 4 * parameters
    said = "a server's death ends the run: the node's shared memory" in capfd.readouterr().err
    assert said == (comm.rank == 0 and not fits)
