"""The coordinator's rank is taken over by another process, which sees the run through."""

import json
import threading
import time

import numpy as np
import pytest

from mpidl.config import from_dict
from mpidl.job.build import build
from mpidl.parameters import shards
from mpidl.storage.checkpoint import Checkpoint
from mpidl.topology.roles import assign
from mpidl.tracing.feature import Untraced

pytestmark = pytest.mark.mpi(min_size=3)
EPOCHS = 12


def test_evaluations_and_the_record_outlive_the_process(comm):
    """A worker gives more evaluations than there is room for: each is seen until it is in the record, and then gone."""
    from mpidl.rma.transport import Transport
    from mpidl.transport.capacity import Capacity
    from mpidl.transport.protocol import EVALUATIONS, Evaluated

    roles, total = assign([0] * comm.size, servers=1), 3 * EVALUATIONS
    given = [Evaluated(epoch, epoch / 8, [0.5, float(epoch)]) for epoch in range(1, total + 1)]

    def see(link, count):
        found = []
        while len(found) < count:
            found += link.evaluations.look()
        return found

    with Transport(comm, roles, Capacity(shards(11, 1), np.dtype(np.float64), figures=2)) as transport:
        if comm.rank == 2:
            link = transport.worker(0)
            for each in given:
                link.reports.evaluated(each)
        elif comm.rank == 0:
            link = transport.coordinator()
            kept = len(see(link, EVALUATIONS))
            link.record.write(str(kept).encode())
            link.evaluations.take()
            assert see(link, 2)[0] == given[kept], "these are in no record"
            comm.send(None, 1)
        elif comm.rank == 1:
            comm.recv(source=0)
            link = transport.as_rank(0).coordinator()
            kept = int(link.record.read())
            link.evaluations.seen[0] = kept
            found = []
            while len(found) < total - kept:
                found += link.evaluations.look()
                link.evaluations.take()
            assert found == given[kept:]


class Died(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def taken_over(comm, monkeypatch):
    """Let the coordinator's role end when it has written a second record of metrics, at a later look than the first.

    Another process takes its rank over, beside its own role.
    """
    from mpidl.history import Run
    from mpidl.job.checkpoints import Checkpoints
    from mpidl.roles.coordinator import Coordinator
    from mpidl.runs import rank_role, ranks

    # A server where there is one worker, else a worker.
    taker, apart = comm.size - 2, comm.Dup()
    begin, make, run = rank_role.begun_role, Coordinator.__init__, Coordinator.run
    complete, writing = Checkpoints.complete, threading.Lock()
    reporters, threads, sizes, tables, dead = [], [], set(), [], threading.Event()

    def made(self, ready, reporter, *arguments):
        make(self, ready, reporter, *arguments)
        reporters.append(reporter)

    def die(self):
        def incidents(known):
            sizes.add(reporters[0].recorder.state()["metrics"])
            if len(sizes) > 2:
                raise Died
            return []

        self.incidents, self.unbind = incidents, lambda: None
        with pytest.raises(Died):
            run(self)
        with writing:
            dead.set()
        reporters[0].abandon()
        apart.send(None, taker)
        apart.recv(source=taker)
        return Run(reporters[0].recorder.directory).summary

    def complete_alive(*arguments):
        with writing:  # A thread of a dead process writes no more.
            return not dead.is_set() and complete(*arguments)

    def begun(world, ready, transport, reporter):
        tables.append(transport.processes)

        def play():
            while not apart.iprobe(0):
                time.sleep(0.001)
            apart.recv(source=0)
            transport.processes[0] = taker
            try:
                rank_role.play_taken_over(world, ready, transport, role, Untraced(), 0, lambda lost: None)
            finally:
                apart.send(None, 0)

        role = begin(world, ready, transport, reporter)
        if comm.rank == taker:
            threads.append(threading.Thread(target=play))
            threads[0].start()
        return role

    monkeypatch.setattr(ranks, "begun_role", begun)
    if comm.rank == 0:
        monkeypatch.setattr(Coordinator, "__init__", made)
        monkeypatch.setattr(Coordinator, "run", die)
        monkeypatch.setattr(Checkpoints, "complete", complete_alive)
    yield
    for thread in threads:
        thread.join()
    apart.Barrier()
    # No process has died: each leaves MPI at its exit, as the launcher expects.
    for table in tables:
        table[:] = range(comm.size)
    apart.Free()


def train(comm, path, name):
    """Return the summary, the records, the steps of the checkpoints that the events have, and the last checkpoint."""
    from mpidl.runs import ranks

    config = from_dict(
        {
            "run": {"dir": str(path), "name": name, "epochs": EPOCHS, "report": 100.0, "loggers": ["tensorboard"]},
            "data": {"source": "digits", "batch": 32},
            "model": {"layer": [{"type": "dense", "units": 10}]},
            "algorithm": {"name": "downpour"},
            "server": {"rule": "sgd", "rate": 0.05},
            "checkpoint": {"every": 0.1},
            "debug": {"gradient_seconds": 0.002},
            "device": {"kind": "cpu"},
        }
    )
    summary, run = ranks.run(config, lambda: build(config), comm), path / name
    records, events = (
        [json.loads(line) for line in (run / f"{kind}.jsonl").read_text().splitlines()]
        for kind in ("metrics", "events")
    )
    steps = [each["step"] for each in events if each["event"] == "checkpoint"]
    names = {each.name for each in (run / "checkpoints").iterdir()}
    assert names == {"0", *map(str, sorted(set(steps))[-3:])}, "nothing is left of checkpoints that were given up"
    return summary, records, steps, Checkpoint(run / "checkpoints" / str(steps[-1]))


def test_a_run_goes_on_as_if_nothing_had_been(comm, shared_path, request):
    undisturbed = train(comm, shared_path, "undisturbed")
    request.getfixturevalue("taken_over")
    summary, records, steps, last = train(comm, shared_path, "disturbed")
    expected, all_records, _, same = undisturbed
    same_keys = ("samples", "epochs", "pushes", "ranks", "replicas", "interrupted", "seed", "mpi", "hosts")
    assert {key: summary[key] for key in same_keys} == {key: expected[key] for key in same_keys}
    assert [each["epoch"] for each in records] == [each["epoch"] for each in all_records] == list(range(1, EPOCHS + 1))
    if comm.rank == 0:
        from event_files import scalars  # tensorboardX imports PyTorch, which takes seconds

        points = scalars(shared_path / "disturbed" / "tensorboard")["epoch"]
        assert points == [(each["samples"], each["epoch"]) for each in records]
    # The last one may be of the same step as the one before.
    assert steps == sorted(steps)
    assert len(set(steps[:-1])) == len(steps[:-1]) > 1
    assert last.position.samples == same.position.samples == summary["samples"]
    if comm.size == 3:  # One worker: the same bits.
        names = ("test_loss", "test_accuracy")
        assert [summary[name] for name in names] == [expected[name] for name in names]
        np.testing.assert_array_equal(*(each.arrays("parameters")["0-dense/weight"] for each in (last, same)))
