"""Whole trajectories, step by step, against loops written from the papers; and what users get who choose nothing."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from mpidl.algorithms import ALGORITHMS, Aeasgd, Averaging, Dcasgd, Downpour, Fedprox
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.engines.virtual.times import Constant, Times
from mpidl.rules import Sgd

LOCKSTEP = Times(Constant(1.0))


class PlainSgd:
    def __init__(self, rate):
        self.rate = rate

    def step(self, x, g):
        return x - self.rate * g


class PlainMomentum(PlainSgd):
    velocity = 0.0

    def step(self, x, g):
        self.velocity = 0.9 * self.velocity + g
        return x - self.rate * self.velocity


class PlainAdam(PlainSgd):
    m, v, t = 0.0, 0.0, 0

    def step(self, x, g):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g * g
        corrected = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return x - self.rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)


PLAIN = {"sgd": PlainSgd, "momentum": PlainMomentum, "adam": PlainAdam}


def averaged(lab, problem, plain, replicas, window, mu=0.0):
    """Return the parameters after federated rounds: replicas take batches in turn, their state stays theirs."""
    rules = [plain(0.02) for _ in range(replicas)]
    batches = lab.batches(problem)
    w = problem[0].parameters.copy()
    for first in range(0, len(batches), window * replicas):
        own, done = [w.copy() for _ in range(replicas)], [0] * replicas
        for number, batch in enumerate(batches[first : first + window * replicas]):
            replica = number % replicas
            x = own[replica]
            own[replica] = rules[replica].step(x, lab.gradient(problem, x, batch) + mu * (x - w))
            done[replica] += 1
        w = np.mean([x for x, steps in zip(own, done, strict=True) if steps], axis=0)
    return w


@pytest.mark.parametrize(("n_fetch", "n_push"), [(1, 1), (3, 3), (3, 2), (2, 5)])
def test_downpour_with_local_steps(lab, least_squares, n_fetch, n_push):
    problem = least_squares()
    w = problem[0].parameters.copy()
    accrued, batches = np.zeros_like(w), lab.batches(problem)
    for step, batch in enumerate(batches):
        if step % n_fetch == 0:
            x = w.copy()
        gradient = lab.gradient(problem, x, batch)
        x = x - 0.03 * gradient
        accrued = accrued + gradient
        if (step + 1) % n_push == 0 or step + 1 == len(batches):
            w, accrued = w - 0.02 * accrued, np.zeros_like(w)
    algorithm = Downpour(n_fetch, n_push, rate=0.03)
    found = lab.trained(least_squares(), algorithm, rule=Sgd(0.02), servers=2, replicas=1, times=LOCKSTEP)
    assert found == pytest.approx(w, rel=1e-10)


@pytest.mark.parametrize("inner", PLAIN)
@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize(
    ("algorithm", "window", "mu"), [(partial(Averaging, tau=3), 3, 0.0), (partial(Fedprox, window=4, mu=0.3), 4, 0.3)]
)
def test_averaging_and_fedprox(lab, least_squares, algorithm, window, mu, inner, replicas):
    algorithm = algorithm(rate=0.02, inner=inner)
    found = lab.trained(least_squares(), algorithm, servers=1, replicas=replicas, times=LOCKSTEP)
    expected = averaged(lab, least_squares(), PLAIN[inner], replicas, window, mu)
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("factor", [lambda portion: 1.0, lambda portion: 1 / (1 + portion)])
@pytest.mark.parametrize("rho", [None, 0.7])
def test_aeasgd(lab, least_squares, rho, factor):
    """Its force is rate times rho, whatever the rate is at the time."""
    problem = least_squares()
    x = problem[0].parameters.copy()
    center, done = x.copy(), 0
    force = 0.5 / 0.05 if rho is None else rho
    for number, batch in enumerate([*lab.batches(problem), None]):
        if done == 3:
            elastic = 0.05 * factor(number - 1) * force * (x - center)
            x, center, done = x - elastic, center + elastic, 0
        if batch is not None:
            x = x - 0.05 * factor(number) * lab.gradient(problem, x, batch)
            done += 1
    schedule = {"rate_at": factor}
    algorithm = Aeasgd(rate=0.05, window=3, rho=rho)
    found = lab.trained(least_squares(), algorithm, of_shards=schedule, of_steps=schedule)
    assert found == pytest.approx(center, rel=1e-10)


@pytest.mark.parametrize("latency", [0.01, 0.2, 3.0])
def test_dcasgd_compares_with_what_was_fetched_whatever_the_latency(lab, tally, latency):
    model, split = tally()
    seen = []

    def gradient(batch):
        seen.append(model.parameters.copy())
        return 0.0, model.parameters.copy()

    model.loss_and_gradient = gradient
    engine = lab.engine(
        (model, split), Dcasgd(), servers=2, replicas=3, times=Times(Constant(1.0), latency=Constant(latency))
    )
    pushed = []
    for shard in engine.shards:
        receive = shard.receive_push

        def watched(worker, fetched, values, portions, receive=receive):
            pushed.append(values.copy())
            receive(worker, fetched, values, portions)

        shard.receive_push = watched
    engine.run()
    assert len(pushed) == 2 * len(seen)
    # Each gradient is the parameters that it was computed at.
    for computed, origin in pushed:
        assert np.array_equal(computed, origin)


#: Of each algorithm: the defaults of its keys, and what its policy has with 1, 2 and 8 replicas.
DEFAULTS = {
    "adag": {"rate": None, "window": None, "damping": "coordinate"},
    "aeasgd": {"rate": 0.3, "window": 2, "rho": None},
    "agn": {"rate": None, "window": None},
    "averaging": {"rate": 0.05, "tau": 4, "inner": "momentum", "dynamic": False},
    "backup_sync": {"backup": 1, "grace": 0.0, "restart": False},
    "dcasgd": {"variance": None, "adaptive": False, "decay": 0.95},
    "diloco": {
        "rate": 0.001, "window": 16, "inner": "adamw", "fragments": 1, "overlap": 0, "mixing": 0.0,
        "dynamic": False, "asynchronous": False, "delay": None, "quorum": None, "grace": 0.0,
    },
    "downpour": {"n_fetch": 1, "n_push": 1, "schedule": "aligned", "rate": None, "warm_start": 0.0, "overlap": False},
    "dynsgd": {"rate": 0.2, "window": 4},
    "eamsgd": {"rate": 0.03, "tau": 4, "alpha": None, "delta": 0.9},
    "easgd": {"rate": 0.3, "tau": 1, "alpha": None, "asynchronous": True, "inner": "sgd"},
    "fedprox": {"rate": 0.05, "window": 16, "mu": 0.01, "inner": "momentum", "dynamic": False},
    "hogwild": {},
    "rescaled": {"n_fetch": 1, "n_push": 1, "schedule": "aligned", "rate": None, "warm_start": 0.0, "overlap": False},
    "ringleader": {},
    "ringmaster": {"max_delay": None, "stops": True, "adaptive": False},
    "sandblaster": {
        "history": 10, "batch": 1.0, "overlap": 0.25, "unit": 2, "backups": True, "warm_start": 0,
        "tolerance": 0.0, "method": "lbfgs",
    },
    "softsync": {"n": 1, "modulate": True},
    "ssp": {"bound": 3},
    "stacking": {"modules": 3, "hidden": 300, "ridge": 1.0, "unit": 2, "backups": True},
    "sync": {},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted({cls.name for cls in ALGORITHMS.values()}))
def test_defaults(name):
    algorithm = ALGORITHMS[name]()
    shared = {"wire": "fp32", "wire_fetch": "fp32", "max_staleness": None}
    assert dataclasses.asdict(algorithm) == DEFAULTS[name] | shared


POLICIES = [
    ("adag", {}, 1, "DampedChange", {"rate": 0.5, "norm": False}),
    ("adag", {}, 2, "DampedChange", {"rate": 0.4, "norm": False}),
    ("adag", {}, 5, "DampedChange", {"rate": pytest.approx(0.32), "norm": False}),
    ("adag", {}, 16, "DampedChange", {"rate": 0.2, "norm": False}),
    ("adag", {"damping": "norm"}, 16, "DampedChange", {"rate": 0.05, "norm": True}),
    ("adag", {"window": 2}, 8, "DampedChange", {"rate": 0.1, "norm": False}),
    ("adag", {"rate": 0.3, "damping": "norm"}, 8, "DampedChange", {"rate": 0.3, "norm": True}),
    ("aeasgd", {}, 2, "AddChange", {"scale": "unscaled"}),
    ("agn", {}, 2, "AddChange", {"scale": "unscaled"}),
    ("averaging", {}, 2, "Assign", {}),
    ("backup_sync", {"backup": 2}, 8, "FirstOfStep", {"count": 6, "workers": 8, "grace": 0.0}),
    ("backup_sync", {"backup": 2}, 2, "FirstOfStep", {"count": 1, "workers": 2, "grace": 0.0}),
    ("backup_sync", {"grace": 0.5}, 8, "FirstOfStep", {"count": 7, "workers": 8, "grace": 0.5}),
    ("dcasgd", {}, 2, "DelayCompensated", {"variance": 0.04, "decay": None}),
    ("dcasgd", {"adaptive": True}, 2, "DelayCompensated", {"variance": 2.0, "decay": 0.95}),
    ("dcasgd", {"adaptive": True, "variance": 1.5}, 2, "DelayCompensated", {"variance": 1.5, "decay": 0.95}),
    ("diloco", {}, 2, "ApplyAtOnce", {"scale": "unscaled"}),
    ("diloco", {"asynchronous": True}, 3, "DelayedNesterov", {"count": 6}),
    ("diloco", {"asynchronous": True, "delay": 5}, 3, "DelayedNesterov", {"count": 5}),
    ("diloco", {"quorum": 2, "grace": 1.5}, 3, "FirstOfStep", {"count": 2, "workers": 3, "grace": 1.5}),
    ("downpour", {}, 2, "ApplyAtOnce", {"scale": "unscaled"}),
    ("dynsgd", {}, 2, "AddChange", {"scale": "inverse_plus_one"}),
    ("eamsgd", {}, 2, "AddChange", {"scale": "unscaled"}),
    ("easgd", {}, 2, "AddChange", {"scale": "unscaled"}),
    ("fedprox", {}, 2, "Assign", {}),
    ("hogwild", {}, 2, "ApplyAtOnce", {"scale": "unscaled"}),
    ("rescaled", {}, 3, "RescaledRate", {"workers": 3}),
    ("ringleader", {}, 3, "GradientTable", {"workers": 3}),
    ("ringmaster", {}, 3, "ApplyAtOnce", {"scale": "unscaled", "by_arrival": False}),
    ("ringmaster", {"stops": False}, 3, "ApplyAtOnce", {"bound": 5, "by_arrival": True, "sums": False}),
    ("ringmaster", {"stops": False, "max_delay": 4}, 3, "ApplyAtOnce", {"bound": 3, "by_arrival": True}),
    ("ringmaster", {"adaptive": True}, 3, "DecreasingRate", {"exponent": 0.75, "by_arrival": True, "sums": False}),
    ("softsync", {}, 8, "AccumulateGradients", {"count": 8, "scale": "inverse"}),
    ("softsync", {"n": 3, "modulate": False}, 8, "AccumulateGradients", {"count": 2, "scale": "unscaled"}),
    ("softsync", {"n": 9}, 8, "AccumulateGradients", {"count": 1, "scale": "inverse"}),
    ("ssp", {}, 2, "ApplyAtOnce", {"scale": "unscaled"}),
    ("sync", {}, 2, "ApplyAtOnce", {"scale": "unscaled"}),
    ("downpour", {"max_staleness": 4}, 2, "ApplyAtOnce", {"bound": 4, "by_arrival": True, "sums": False}),
]


@pytest.mark.parametrize(("name", "keys", "replicas", "policy", "arguments"), POLICIES)
def test_policies(name, keys, replicas, policy, arguments):
    found = ALGORITHMS[name](**keys).shard_policy(replicas)
    kept = {name.removeprefix("_"): getattr(value, "__name__", value) for name, value in vars(found).items()}
    assert type(found).__name__ == policy
    assert {name: kept[name] for name in arguments} == arguments


@pytest.mark.parametrize(("replicas", "alpha"), [(1, 0.5), (2, 0.45), (8, 0.1125)])
@pytest.mark.parametrize("name", ["easgd", "eamsgd", "aeasgd"])
def test_the_elastic_force_is_at_most_one_half(lab, tally, name, replicas, alpha):
    """With gradients of 0 and a center at 0, the first exchange of a replica at 1 pushes alpha."""
    requests = ALGORITHMS[name]().replica(0, np.zeros(3), replicas, ReplicaState())
    answer, fetches = None, 0
    while not isinstance(request := requests.send(answer), Push):
        answer = {NextBatch: (), Gradient: np.zeros(3)}.get(type(request))
        if isinstance(request, Fetch):
            request.parameters[:] = 1.0 if fetches == 0 else 0.0
            fetches += 1
    assert request.vector == pytest.approx(np.full(3, alpha))
