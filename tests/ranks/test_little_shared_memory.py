"""Where shared memory has no room for all that servers keep, a job runs, and its servers' ranks can't be taken over."""

import pytest
from small_runs import digits, run_job


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("fits", [True, False])
def test_the_state_of_the_rule_stays_outside(comm, shared_path, monkeypatch, capfd, fits):
    from mpidl.errors import MpidlError
    from mpidl.rma import transport
    from mpidl.rma.transport import Transport

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
    summary = run_job(comm, digits(shared_path, 500, run={"epochs": 1}, server={"rule": "adam", "rate": 0.001}))
    assert summary["samples"] > 0
    if fits:
        assert (kept, len(needed)) == (["first_moment", "second_moment"], 1)
    else:
        assert kept == []
        assert needed[0] - needed[1] >= 2 * 4 * parameters
    said = "a server's death ends the run: the node's shared memory" in capfd.readouterr().err
    assert said == (comm.rank == 0 and not fits)
