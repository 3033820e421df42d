"""The rank of the coordinator, or of a server in the middle of a chunk, is taken over by another process."""

import json
import threading
import time

import numpy as np
import pytest
from small_runs import digits, run_job

from mpidl.algorithms.requests import Fetch, Push
from mpidl.parameters import Range, shards
from mpidl.rules import Adagrad
from mpidl.shards.policies import ApplyAtOnce
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.storage.checkpoint import Checkpoint
from mpidl.topology.roles import assign
from mpidl.tracing.feature import Untraced

pytestmark = pytest.mark.mpi(min_size=3)
EPOCHS = 12


def test_evaluations_and_the_record_outlive_the_process(comm):
    """A worker gives more evaluations than there is room for: each is seen until it is in the record, and then gone."""
    from mpidl.rma.transport import Transport
    from mpidl.transport.capacity import Capacity
    from mpidl.transport.protocol import EVALUATIONS, EpochEvaluation

    roles, total = assign([0] * comm.size, servers=1), 3 * EVALUATIONS
    given = [EpochEvaluation(epoch, epoch / 8, [0.5, float(epoch)]) for epoch in range(1, total + 1)]

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
    config = digits(
        path, run={"name": name, "epochs": EPOCHS, "report": 100.0, "loggers": ["tensorboard"]}, data={"batch": 32},
        server={"rule": "sgd", "rate": 0.05}, checkpoint={"every": 0.1}, debug={"gradient_seconds": 0.002},
    )  # fmt: skip
    summary, run = run_job(comm, config), path / name
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


RULE = Adagrad(0.5)
SIZE, CHUNK, PUSHES, BEFORE = 1009, 100, 20, 57


class DyingPolicy(ApplyAtOnce):
    """Ends when it has applied half of a chunk, some time after others."""

    left = BEFORE

    def apply_chunk(self, shard, chunk, values, push):
        if self.left == 0:
            shard.chunk(chunk)[: values.size // 2] = np.nan
            raise Died
        self.left -= 1
        super().apply_chunk(shard, chunk, values, push)


def test_another_process_continues_as_a_server(comm, shared_path):
    from mpidl.engines.mpi.through_servers import ThroughServers
    from mpidl.rma.transport import Transport
    from mpidl.roles.server import Server
    from mpidl.transport.capacity import Capacity
    from mpidl.transport.protocol import Phase, State

    roles, whole, taker, victim = assign([0] * comm.size, servers=1), Range(0, SIZE), 0, 1
    workers = len(roles.replicas)
    capacity = Capacity([whole], np.dtype(float), chunk_bytes=8 * CHUNK, kept=RULE.states)

    def server(policy, fill):
        vectors = {name: np.full(SIZE, fill) for name in RULE.states}
        shard = Shard(whole, np.full(SIZE, fill), ScheduledRule(RULE), policy, CHUNK, state=vectors)
        return Server(0, {0: shard}, shared_path, None, workers=workers)

    with Transport(comm, roles, capacity) as transport:
        if comm.rank == victim:
            (shared_path / "events.jsonl").write_text("")
            role = server(DyingPolicy(), 0.0)
            role.bind(transport)
            comm.Barrier()
            with pytest.raises(Died):
                role.run()
            comm.send(None, taker)
        elif comm.rank == taker:
            transport.coordinator().orders.set_phase(Phase.TRAIN)
            comm.Barrier()
            comm.recv(source=victim)
            role = server(ApplyAtOnce(), np.nan)
            role.adopt(transport.as_rank(victim))
            assert role.lost == 1
            (served,), (shard,) = role.served, role.shards
            backoff = served.link.backoff()
            while served.status.figures["state"] != State.TRAINED:
                if not served.round():
                    backoff.pause()
            check(shard, workers, shared_path)
            role.unbind()
            assert shard.pushes == workers * PUSHES
        else:
            handler, fetched = ThroughServers([whole]), np.empty(SIZE)
            link = transport.worker(comm.rank - 2)
            handler.bind(link)
            comm.Barrier()
            for _ in range(PUSHES):
                handler.actions[Push](Push(np.ones(SIZE)))
                handler.actions[Fetch](Fetch(fetched))
            while not link.pushes.end():
                pass
            handler.unbind()


def check(shard, workers, directory):
    """Check that each element is as after all pushes but the chunk that is recorded as lost."""
    (event,) = (json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines())
    assert (event["event"], event["role"], event["shard"]) == ("lost", "server 0", 0)
    assert 0 <= event["worker"] < workers
    pushes = np.full(SIZE, workers * PUSHES)
    pushes[CHUNK * event["chunk"] :][:CHUNK] -= 1
    # Half of the lost chunk was torn.
    torn = np.isnan(shard.parameters)
    assert torn.sum() == torn[CHUNK * event["chunk"] :][:CHUNK].sum() == shard.chunk(event["chunk"]).size // 2
    np.testing.assert_array_equal(shard.vectors["sum"][~torn], pushes[~torn])
    parameters, sums = np.zeros((2, 1))
    after = [0.0]
    for step in range(1, workers * PUSHES + 1):
        RULE.update(parameters, (sums,), np.ones(1), step)
        after.append(parameters[0])
    np.testing.assert_array_equal(shard.parameters[~torn], np.array(after)[pushes[~torn]])
    assert shard.staleness.counts.sum() == shard.pushes == shard.clock == workers * PUSHES
