"""What is final of a gradient leaves while the rest is computed: nothing is lost, and servers have it early."""

import time

import numpy as np
import pytest
from small_runs import run, serial_sgd

from mpidl.algorithms import BackupSync, Downpour, Softsync, Ssp
from mpidl.nn import CompleteModel
from mpidl.nn.model import Evaluation
from mpidl.parameters.layout import Layout
from mpidl.rules import Sgd
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.transport import capacity

pytestmark = pytest.mark.mpi(min_size=3)
#: Parameters of several chunks, of which the last is short.
SIZE = 400_003


class Piecewise(CompleteModel):
    """Computes another model's gradient from behind, in pieces of any size; what is not computed yet is NaN."""

    def __init__(self, model, between=lambda start: None, seed=0):
        self._model, self._between, self._random = model, between, np.random.default_rng(seed)
        self.layout, self.dtype = Layout([("parameters", model.parameters.shape)]), model.parameters.dtype
        self._gradient, self._take = np.empty_like(model.parameters), None

    @property
    def parameters(self):
        return self._model.parameters

    @parameters.setter
    def parameters(self, vector):
        self._model.parameters = vector

    def report_final(self, take):
        self._take = take

    def evaluate(self, batch):
        return Evaluation(0.0, float("nan"))

    def loss_and_gradient(self, batch):
        loss, gradient = self._model.loss_and_gradient(batch)
        if self._take is None:
            return loss, gradient
        self._gradient.fill(np.nan)
        size = gradient.size
        starts = sorted(self._random.integers(0, size, 5).tolist(), reverse=True)
        for start in [*starts, starts[-1], 0]:
            self._gradient[start:] = gradient[start:]
            self._take(self._gradient, start)
            self._between(start)
        return loss, self._gradient


@pytest.mark.parametrize(
    ("algorithm", "slots"),
    [(Downpour(), 2), (Downpour(), 32), (Downpour(4), 32), (Ssp(1), 2), (Softsync(1, modulate=False), 32)],
)
def test_no_update_is_lost(comm, shared_path, tally, monkeypatch, transport, algorithm, slots):
    monkeypatch.setattr(capacity, "MOST_SLOTS", slots)
    model, split = tally(SIZE)
    servers = 1 if comm.size == 3 else 2
    factor = max(1, comm.size - 1 - servers) if isinstance(algorithm, Softsync) else 1
    problem = Piecewise(model, seed=comm.rank), split
    run(problem, shared_path, transport=transport, algorithm=algorithm, servers=servers)
    assert np.array_equal(factor * model.parameters, -model.total(101, 2))


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize(
    ("transport", "algorithm"),
    [
        ("windows", Downpour(wire="int8")),
        ("messages", Downpour(wire="int8")),
        ("auto", Downpour(max_staleness=100)),
        ("windows", Downpour(2, 2)),
        ("messages", BackupSync()),
    ],
    indirect=["transport"],
)
def test_what_may_not_leave_early_or_is_encoded_is_as_without(
    comm, shared_path, least_squares, monkeypatch, transport, algorithm
):
    """One worker; of what is encoded, the same chunks are, in the same order."""
    if algorithm.wire != "fp32":
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    found = []
    for wrap in (lambda model: model, Piecewise):
        model, split = least_squares(4099)
        options = {"servers": comm.size - 2, "rule": Sgd(1e-4), "algorithm": algorithm}
        run((wrap(model), split), shared_path, transport=transport, **options)
        found.append(model.parameters.copy())
    assert np.isfinite(found[0]).all()
    assert np.array_equal(*found)


class Whole(Piecewise):
    """Must not be asked to report what is final."""

    def report_final(self, take):
        assert take is None


@pytest.mark.parametrize("algorithm", [Downpour(overlap=True), Softsync(), BackupSync(grace=0.01)])
def test_what_does_not_leave_early_is_not_asked_for_early(comm, shared_path, tally, algorithm):
    model, split = tally(13)
    run((Whole(model), split), shared_path, algorithm=algorithm)


def test_one_worker_is_serial_sgd_bit_for_bit(comm, shared_path, least_squares, transport):
    model, split = least_squares(1009)
    run((Piecewise(model), split), shared_path, transport=transport, servers=comm.size - 2, rule=Sgd(1e-3))
    assert np.array_equal(model.parameters, serial_sgd(least_squares(1009), 1e-3))


@pytest.mark.parametrize("slots", [2, 32])
def test_servers_have_applied_the_upper_part_before_the_lower_one_is_computed(
    comm, shared_path, tally, monkeypatch, transport, slots
):
    """The gradient waits, between two of its pieces, for the chunks that the first of them completes."""
    from mpidl.engines.mpi.through_servers import ThroughServers

    monkeypatch.setattr(capacity, "MOST_SLOTS", slots)
    servers, links, applied = comm.size - 2, [], []
    bind = ThroughServers.bind
    monkeypatch.setattr(ThroughServers, "bind", lambda self, link: (links.append(link), bind(self, link))[1])

    def wait(start):
        (link,) = links
        top, now, until = link.shards[-1], np.empty(SIZE), time.monotonic() + 60
        chunk = min(top.size, CHUNK_BYTES // now.itemsize)
        # Whole chunks of the last shard that are final, last first; each is applied soon, if there is a slot for it.
        final = [top.start + first for first in reversed(range(0, top.size, chunk)) if top.start + first >= start]
        while final and all(applied):
            link.fetches.read_present(now)
            changed = now[final[:slots]] != model.parameters[final[:slots]]
            if changed.all() or time.monotonic() > until:
                applied.append(bool(changed.all() and (start == 0 or now[0] == model.parameters[0])))
                break

    model, split = tally(SIZE)
    run((Piecewise(model, wait), split), shared_path, transport=transport, servers=servers)
    assert all(applied)
    assert bool(applied) == (comm.rank not in range(servers + 1)) or not links
    assert np.array_equal(model.parameters, -model.total(101, 2))
