"""A worker that ends in the middle of its work: another process settles its rank, and each batch counts exactly once.

The worker's process goes on in these tests, but plays no part any more.
"""

import json
import signal
import threading
import time
from dataclasses import replace

import h5py
import numpy as np
import pytest
from small_runs import run_job

from mpidl.data.schedule import Portions
from mpidl.parameters import Range
from mpidl.storage.checkpoint import Checkpoint

SAMPLES, PADDING, EPOCHS, BATCH, PORTION = 60, 3000, 4, 4, 12


class Counting:
    """A model whose parameters count: plain SGD with a rate of 1 adds 1 to that of each sample that it applies."""

    def __init__(self):
        self.parameters = np.zeros(SAMPLES + PADDING)
        self._gradient = np.zeros_like(self.parameters)

    def loss_and_gradient(self, batch):
        time.sleep(6e-3)
        numbers = batch.inputs[:, 0].astype(int)
        self._gradient[:SAMPLES] = -np.bincount(numbers, minlength=SAMPLES)
        self._gradient[SAMPLES:] = -len(numbers)
        return 0.0, self._gradient

    def evaluate(self, batch):
        return 0.0, float("nan")


def make(dataset, seed):
    return Counting()


def counts(position, portion):
    """Return how often a checkpoint says that it has each sample."""
    portions, found = Portions(SAMPLES, BATCH, portion, 0, contiguous=True), np.zeros(SAMPLES, int)
    for number in range(position.next_portion):
        found[portions.indices(number)] += 1
    for number, done in position.unfinished:
        found[portions.indices(number)[done * BATCH :]] -= 1
    return found


class Ended(Exception):
    """The end of a process."""


def configuration(path, algorithm):
    with h5py.File(path / "numbers.h5", "w") as file:
        for split in ("train", "test"):
            file[f"{split}/x"] = np.arange(SAMPLES, dtype=np.float32)[:, None]
            file[f"{split}/y"] = np.zeros((SAMPLES, 1), np.float32)
    return {
        "run": {"dir": str(path), "name": "counts", "epochs": EPOCHS},
        "data": {"source": "hdf5", "path": str(path / "numbers.h5"), "batch": BATCH, "portion": PORTION},
        "model": {"factory": "test_settlement:make"},
        "algorithm": algorithm,
        "server": {"rule": "sgd", "rate": 1.0},
        "topology": {"servers": 1},
        "checkpoint": {"every": 0.02, "keep": 100},
    }


@pytest.fixture
def deaths(comm, monkeypatch):
    """Return a function that lets the last worker end when it passes a point for the n-th time; others settle it."""
    import mpidl.engines.mpi.engine
    import mpidl.rma.outboxes
    import mpidl.roles.worker
    import mpidl.runs.ranks
    from mpidl.rma.takings import Takings
    from mpidl.roles.events import Recovered
    from mpidl.roles.worker import Worker
    from mpidl.survival.survival import Survival
    from mpidl.survival.worker_recovery import WorkerRecovery
    from mpidl.transport.protocol import Phase

    victim, host, wanted = comm.size - 1, comm.size - 2, {}
    begin, bind, run = Worker.__init__, Worker.bind, Worker.run
    end, capacity_of = Takings.end, mpidl.runs.ranks.capacity_of

    def drain(self):
        """Let the worker leave when it has computed some gradients."""
        delay = self.delay

        def count(seconds):
            wanted["drained"] -= 1
            if not wanted["drained"]:
                self.interrupt(signal.SIGTERM)
            return delay(seconds)

        self.delay = count

    def pass_point(name):
        if comm.rank != victim or name not in wanted or threading.current_thread() is not threading.main_thread():
            return
        wanted[name] -= 1
        if not wanted[name]:
            raise Ended(name)

    def note(self, *ticket):
        pass_point("ticket-not-noted")
        end(self, *ticket)

    def prepare(self, ready, *args, **options):
        self.ready = ready
        begin(self, ready, *args, **options)

    def keep(self, transport):
        self.transport = transport
        bind(self, transport)

    def play(self):
        if comm.rank == victim and "drained" in wanted:
            drain(self)
        if comm.rank == host:
            threading.Thread(target=settle, args=(self,), daemon=True).start()
        try:
            pass_point("training-begins")
            run(self)
            if self.left:
                raise Ended("drained")
        except Ended:
            self.left = False
            comm.send(None, host, tag=99)
            orders = self.transport.worker(comm.rank - 2).orders
            while orders.read().phase != Phase.EXIT:
                time.sleep(0.01)
        if comm.rank == host:
            with self.transport.turn.left():
                assert settled.wait(60)

    settled = threading.Event()

    def settle(worker):
        comm.recv(source=victim, tag=99)
        transport = worker.transport
        transport.turn.take()
        transport.processes = transport.processes.copy()
        transport.processes[victim] = host
        settlement = WorkerRecovery(worker.ready, victim - 2, worker)
        settlement.adopt(transport.as_rank(victim))
        comm.send(Recovered(victim, "worker", host, 0.0, {}), 0, tag=98)
        settlement.run()
        transport.turn.leave()
        settled.set()

    incidents = []

    def look(known):
        if comm.rank == 0 and comm.iprobe(host, 98):
            incidents.append(comm.recv(source=host, tag=98))
        return incidents[known:]

    monkeypatch.setattr(Survival, "incidents", lambda self, known: look(known))
    monkeypatch.setattr(mpidl.rma.outboxes, "fault_point", pass_point)
    monkeypatch.setattr(mpidl.engines.mpi.engine, "fault_point", pass_point)
    monkeypatch.setattr(Takings, "end", note)
    monkeypatch.setattr(mpidl.roles.worker, "FOR_ALL", 0.0)
    monkeypatch.setattr(Survival, "hand_over", lambda self: True)
    monkeypatch.setattr(Worker, "__init__", prepare)
    monkeypatch.setattr(Worker, "bind", keep)
    monkeypatch.setattr(Worker, "run", play)
    # Many small chunks: pushes end in the middle of a ring.
    monkeypatch.setattr(mpidl.runs.ranks, "capacity_of", lambda *args: replace(capacity_of(*args), chunk_bytes=1200))
    return wanted


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize(
    ("algorithm", "point", "count"),
    [
        ({"name": "downpour"}, "data-written", 16),
        ({"name": "downpour", "n_push": 5}, "ticket-not-noted", 4),
        ({"name": "ssp", "bound": 1}, "gradient-computed", 9),
        ({"name": "downpour", "n_push": 5}, "drained", 7),
        # All others are done: what it leaves is computed in its place.
        ({"name": "downpour", "n_push": 2}, "gradient-computed after all others", 7),
        ({"name": "downpour"}, "training-begins", 1),
    ],
)
def test_each_batch_counts_once(comm, shared_path, deaths, algorithm, point, count):
    point, _, late = point.partition(" ")
    deaths[point] = count
    config = None
    if comm.rank == 0:
        config = configuration(shared_path, algorithm)
        if late:
            config["data"]["portion"], config["debug"] = SAMPLES, {"slow_worker": 1}
    config = comm.bcast(config)
    summary = run_job(comm, config)
    if comm.rank == comm.size - 1:
        assert not deaths[point], "the worker has ended before"
    if comm.rank == 0:
        assert summary["samples"] == EPOCHS * SAMPLES
        paths = sorted((shared_path / "counts" / "checkpoints").iterdir(), key=lambda path: int(path.name))
        assert len(paths) > 1
        for path in paths:
            checkpoint = Checkpoint(path)
            values = checkpoint.read("parameters", Range(0, checkpoint.size))
            assert values[:SAMPLES].tolist() == counts(checkpoint.position, config["data"]["portion"]).tolist()
            assert np.all(values[SAMPLES:] == checkpoint.position.samples)
            assert values[:SAMPLES].sum() == checkpoint.position.samples
        assert values[:SAMPLES].tolist() == [EPOCHS] * SAMPLES


@pytest.mark.mpi(min_size=4)
def test_what_cannot_be_computed_again_is_recorded_as_lost(comm, shared_path, deaths):
    # Behind the mark of the first checkpoint and the first chunks of a push, which the server has got.
    deaths["data-written"] = 3
    config = None
    if comm.rank == 0:
        config = configuration(shared_path, {"name": "downpour", "wire": "bf16"}) | {"checkpoint": {"every": 100.0}}
    run_job(comm, comm.bcast(config))
    if comm.rank == 0:
        lines = (shared_path / "counts" / "events.jsonl").read_text().splitlines()
        (event,) = (found for line in lines if (found := json.loads(line))["event"] == "lost")
        worker = comm.size - 3
        assert (event["rank"], event["role"], event["worker"]) == (comm.size - 1, f"worker {worker}", worker)
        first, last = event["batches"]
        assert first == last
        assert event["portions"] == [first // (PORTION // BATCH)]
        assert (event["shard"], event["chunk"]) == (None, None)
        newest = max((shared_path / "counts" / "checkpoints").iterdir(), key=lambda path: int(path.name))
        checkpoint = Checkpoint(newest)
        missing = EPOCHS * SAMPLES - checkpoint.read("parameters", Range(0, checkpoint.size))[SAMPLES:]
        # Some chunks have that push, others don't.
        assert {*missing.tolist()} == {0, BATCH}
        assert event["push"] == 0
