"""Shards on a device behave like shards on the host, and publish their parameters there."""

import numpy as np
import pytest

from mpidl.algorithms import Adag, BackupSync, Dcasgd, Diloco, Downpour, Easgd, Rescaled, Ringleader, Softsync
from mpidl.parameters import Range
from mpidl.rules import Adagrad, Adam, Momentum, Nesterov, Sgd
from mpidl.shards.on_device import ShardOnDevice, rehearse
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.shards.vectors import Accrual, Combine, Dot, Multiply, Vectors

WHOLE, CHUNK, WORKERS = Range(30, 67), 10, 3
CASES = [
    (Downpour(), Sgd(0.1)),
    (Downpour(max_staleness=1), Adagrad(0.1)),
    (Downpour(), Adam(0.1)),
    (Softsync(), Momentum(0.1)),
    (Easgd(), Sgd()),
    (Dcasgd(), Adagrad(0.1)),
    (Adag(), Sgd()),
    (Diloco(asynchronous=True), Nesterov(0.7, 0.9)),
    (BackupSync(), Sgd(0.1)),
    (Rescaled(), Adagrad(0.1)),
    (Ringleader(), Momentum(0.1)),
    (Diloco(quorum=2, grace=1.0), Nesterov(0.7, 0.9)),
]


def pair(cupy, algorithm, rule, dtype="float64"):
    """Return equal shards on the host and on a device, and the array in which the latter publishes parameters."""
    parameters = np.random.default_rng(1).normal(size=WHOLE.size).astype(dtype)
    state = {name: np.full_like(parameters, 0.1) for name in rule.states}
    published = parameters.copy()
    scheduled = ScheduledRule(rule, lambda portion: 1 / (1 + portion), [Range(35, 52)])
    policies = [algorithm.shard_policy(WORKERS) for _ in range(2)]
    copies = {name: vector.copy() for name, vector in state.items()}
    host = Shard(WHOLE, parameters, scheduled, policies[0], CHUNK, state=state, clock=5)
    device = ShardOnDevice(WHOLE, published, scheduled, policies[1], CHUNK, xp=cupy, state=copies, clock=5)
    return host, device, published


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("algorithm", "rule"), CASES)
def test_pushes_change_it_as_they_do_a_shard_on_the_host(cupy, algorithm, rule, dtype):
    host, device, published = pair(cupy, algorithm, rule, dtype)
    before = published.copy()
    random = np.random.default_rng(2)
    rows = 1 + host.policy.compares
    slot = np.empty(rows * CHUNK, dtype)
    for number in range(8):
        pushed = random.normal(size=(rows, WHOLE.size) if rows > 1 else WHOLE.size).astype(dtype)
        for chunk, piece in reversed([*enumerate(host.pieces)]):
            part = pushed[..., slice(*piece)]
            values = slot[: part.size].reshape(part.shape)
            values[:] = part
            fetched = max(0, host.clock - number % 2)
            completed = [
                shard.receive_chunk(number % WORKERS, chunk, fetched, values, (number, number))
                for shard in (host, device)
            ]
            assert completed[0] == completed[1]
            assert published.tobytes() == host.parameters.tobytes()
        assert host.clock == device.clock
    for worker in range(WORKERS):
        for shard in (host, device):
            shard.remove_worker(worker)
        assert published.tobytes() == host.parameters.tobytes()
    for shard in (host, device):
        shard.apply_rest()
    assert published.tobytes() == host.parameters.tobytes()
    assert not np.array_equal(published, before)
    kept, expected = device.copy().on_host(), host.copy().on_host()
    assert kept.keys() == expected.keys()
    for name, vector in kept.items():
        assert type(vector) is np.ndarray
        assert vector.tobytes() == expected[name].tobytes(), name
    assert device.dropped == host.dropped


def test_what_changes_when_a_worker_leaves_is_published(cupy):
    host, device, published = pair(cupy, BackupSync(), Sgd(0.1))
    before = published.copy()
    for shard in (host, device):
        for chunk, piece in reversed([*enumerate(shard.pieces)]):
            shard.receive_chunk(0, chunk, shard.clock, np.ones(piece.size), (0, 0))
    assert published.tobytes() == before.tobytes()
    for shard in (host, device):
        shard.remove_worker(1)
        shard.remove_worker(2)
    assert published.tobytes() == host.parameters.tobytes() != before.tobytes()


def test_what_changes_when_a_grace_window_ends_is_published(cupy):
    host, device, published = pair(cupy, BackupSync(backup=2, grace=1.0), Sgd(0.1))
    before = published.copy()
    for shard in (host, device):
        for chunk, piece in reversed([*enumerate(shard.pieces)]):
            shard.receive_chunk(0, chunk, shard.clock, np.ones(piece.size), (0, 0))
        assert shard.pass_time(3.0) == 4.0
    assert published.tobytes() == before.tobytes()
    for shard in (host, device):
        shard.pass_time(4.0)
    assert published.tobytes() == host.parameters.tobytes() != before.tobytes()


def test_its_vectors_are_the_devices(cupy):
    _, device, published = pair(cupy, Downpour(), Adam())
    assert all(type(vector) is cupy.ndarray for vector in device.vectors.values())
    device.parameters[:] = 3
    assert not (published == 3).any()
    device.publish()
    assert (published == 3).all()


def test_what_has_been_brought_needs_its_slot_no_more(cupy):
    _, device, _ = pair(cupy, Downpour(), Sgd())
    slot = np.ones(4)
    brought = device.bring(slot)
    slot[:] = 2
    cupy.cuda.get_current_stream().synchronize()
    assert (brought == 1).all()


@pytest.mark.parametrize(("algorithm", "rule"), [*CASES, (Diloco(asynchronous=True, delay=9), Nesterov(0.7, 0.9))])
def test_a_rehearsal_applies_the_rule(cupy, monkeypatch, algorithm, rule):
    applied = []
    update = type(rule).update
    monkeypatch.setattr(type(rule), "update", lambda *each, **more: (applied.append(1), update(*each, **more))[1])
    rehearse(cupy, ScheduledRule(rule), algorithm.shard_policy(1), "float32")
    assert applied


def test_operations_are_carried_out_on_whole_vectors_of_a_device(cupy):
    random = np.random.default_rng(3)
    host = {name: random.normal(size=50_000) for name in ("a", "b", "c")}
    device = {name: cupy.asarray(vector) for name, vector in host.items()}
    operations = [
        Combine("c", ((2.0, "a"), (-1.0, "b"), (0.5, "c"))),
        Multiply("b", "c"),
        Dot((("a", "b"), ("c", "c"))),
        Combine("a"),
    ]
    on_host, on_device = Vectors(host), Vectors(device, block=None)
    rehearsed, carry_out = [], Vectors.carry_out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vectors, "carry_out", lambda self, *each: (rehearsed.append(self["one"]), carry_out(self, *each)))
        on_device.rehearse()
    assert [type(vector) for vector in rehearsed] == [cupy.ndarray]
    assert on_device.carry_out(operations) == pytest.approx(on_host.carry_out(operations), rel=1e-12)
    for name in host:
        assert host[name].tobytes() == device[name].get().tobytes()
    pieces = [(0, 30_000), (30_000, 50_000)]
    accruals = [Accrual(vectors, pieces) for vectors in (on_host, on_device)]
    values = random.normal(size=20_000)
    for accrual, brought in zip(accruals, (values, cupy.asarray(values)), strict=True):
        accrual.begin(1, ["b"], ["b"])
        assert not accrual.add_chunk(1, 0, 1, brought, 2.0, 1.0)
    assert host["b"].tobytes() == device["b"].get().tobytes()
    assert host["b"].any()
