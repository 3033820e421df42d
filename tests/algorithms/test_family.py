"""The asynchronous family against what its papers prove, on the virtual engine in float64."""

import numpy as np
import pytest

from mpidl.algorithms import (
    ALGORITHMS,
    Adag,
    Aeasgd,
    Agn,
    Dcasgd,
    Diloco,
    Downpour,
    Dynsgd,
    Eamsgd,
    Easgd,
    Exchange,
    Hogwild,
    Softsync,
    Ssp,
)  # fmt: skip
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.data import Batch, Portions
from mpidl.data.dataset import ArraySplit
from mpidl.engines.virtual.times import Constant, Exponential, Times, Uniform
from mpidl.rules import Adagrad, Momentum, Sgd

RANDOM = Times(Exponential(1.0), Exponential(0.1), Exponential(0.05))


def sgd(x, gradient):
    return x - 0.05 * gradient(x)


class Drive:
    """Replicas with an objective each, taking turns against a center to which pushes are added."""

    def __init__(self, algorithm, gradients, center):
        self.center, self._gradients = np.array([center]), gradients
        self.x = [np.zeros(1) for _ in gradients]
        self._replicas = [algorithm.replica(i, x, len(gradients), ReplicaState()) for i, x in enumerate(self.x)]
        self._requests = [next(replica) for replica in self._replicas]

    def step(self):
        """Let each replica do one step, from before its batch to before the next."""
        for i in range(len(self._replicas)):
            while not isinstance(self._requests[i], NextBatch):
                self._answer(i)
            self._answer(i)
            while not isinstance(self._requests[i], NextBatch):
                self._answer(i)

    def _answer(self, i):
        request, answer = self._requests[i], ()
        if isinstance(request, Fetch):
            request.parameters[:] = self.center
        elif isinstance(request, Push):
            self.center += request.vector
        elif isinstance(request, Gradient):
            answer = self._gradients[i](request.parameters)
        self._requests[i] = self._replicas[i].send(answer)


# Elastic averaging.


@pytest.mark.parametrize("tau", [1, 4, 16])
@pytest.mark.parametrize("cls", [Easgd, Eamsgd])
def test_the_center_of_elastic_averaging_settles_at_the_mean_of_the_replicas_minima(cls, tau):
    minima = [-3.0, 1.0, 8.0]
    drive = Drive(cls(rate=0.01, tau=tau, alpha=0.01), [lambda x, b=b: x - b for b in minima], 0.0)
    for _ in range(8000):
        drive.step()
    # Taking turns, each replica sees the center a little moved: an error of the order of alpha.
    assert drive.center[0] == pytest.approx(np.mean(minima), abs=0.05)


def test_replicas_settle_where_gradient_and_elastic_force_balance():
    """At tau = 1, x_i - c = a (b_i - mean b) / (a + rho)."""
    minima, a, rho, rate = np.array([-3.0, 1.0, 8.0]), 2.0, 0.5, 1e-3
    drive = Drive(Easgd(rate=rate, tau=1, alpha=rate * rho), [lambda x, b=b: a * (x - b) for b in minima], 0.0)
    for _ in range(20000):
        drive.step()
    expected = a * (minima - minima.mean()) / (a + rho)
    assert np.ravel(drive.x) - drive.center == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("replicas", [1, 2, 5])
@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0, 1.9])
def test_easgd_in_turns_is_stable_up_to_the_bound_for_alpha(rate, replicas):
    """On a quadratic with h = 1, for any number of replicas: 0 <= alpha <= (4 - 2 eta) / (4 - eta)."""

    def distance(share):
        alpha = share * (4 - 2 * rate) / (4 - rate)
        algorithm = Easgd(rate=rate, tau=1)
        object.__setattr__(algorithm, "alpha", alpha)  # beyond 1 too, which the constructor refuses
        drive = Drive(algorithm, [lambda x: x - 1.0] * replicas, 0.0)
        for _ in range(3000):
            drive.step()
        return abs(drive.center[0] - 1.0)

    with np.errstate(over="ignore", invalid="ignore"):
        assert distance(0.97) < 1e-3
        assert not distance(1.2) < 1e3


def test_without_gradients_the_sum_of_replicas_and_center_is_kept():
    pulls = [3.0, -8.0]
    drive = Drive(Easgd(rate=1.0, tau=2, alpha=0.2), [lambda x, i=i: np.full(1, -pulls[i]) for i in range(2)], 5.0)
    for _ in range(7):
        drive.step()
    total = drive.center[0] + sum(x[0] for x in drive.x)
    assert total == pytest.approx(3 * 5.0 + 7 * sum(pulls), rel=1e-14)
    pulls[:] = 0.0, 0.0
    before = drive.center[0]
    for _ in range(10):
        drive.step()
    assert drive.center[0] != before
    assert drive.center[0] + sum(x[0] for x in drive.x) == pytest.approx(total, rel=1e-14)


def test_easgd_without_force_is_serial_sgd_of_its_replica(lab, least_squares):
    problem = least_squares()
    center = lab.trained(problem, Easgd(rate=0.05, alpha=0.0), servers=1)
    assert np.array_equal(problem[0].parameters, lab.serial(least_squares(), sgd))
    assert np.array_equal(center, least_squares()[0].parameters)


def test_eamsgd_without_force_is_serial_nesterov(lab, least_squares):
    velocity = np.zeros(13)

    def nesterov(x, gradient):
        nonlocal velocity
        ahead.append(x + 0.9 * velocity)
        velocity = 0.9 * velocity - 0.02 * gradient(ahead[-1])
        return x + velocity

    ahead = []
    lab.serial(least_squares(), nesterov)
    problem = least_squares()
    lab.trained(problem, Eamsgd(rate=0.02, alpha=0.0))
    # What the replica holds at the end is where it took its last gradient.
    assert problem[0].parameters == pytest.approx(ahead[-1], rel=1e-13)


def test_eamsgd_without_momentum_is_easgd(lab, least_squares):
    options = {"replicas": 3, "times": RANDOM}
    momentumless = lab.trained(least_squares(), Eamsgd(rate=0.05, alpha=0.3, delta=0.0, tau=2), **options)
    assert momentumless == pytest.approx(
        lab.trained(least_squares(), Easgd(rate=0.05, alpha=0.3, tau=2), **options), rel=1e-12
    )


def test_aeasgd_without_force_never_moves_the_center(lab, least_squares):
    assert np.array_equal(lab.trained(least_squares(), Aeasgd(rho=0.0)), least_squares()[0].parameters)


# Windows of local steps.


@pytest.mark.parametrize("cls", [Agn, Dynsgd, Adag])
def test_one_replica_with_a_window_of_one_is_serial_sgd(lab, least_squares, cls):
    found = lab.trained(least_squares(), cls(rate=0.05, window=1))
    assert found == pytest.approx(lab.serial(least_squares(), sgd), rel=1e-12)


@pytest.mark.parametrize("algorithm", [Dynsgd(rate=0.05, window=5), Adag(rate=0.05, window=5, damping="norm")])
def test_one_replica_is_serial_sgd_for_any_window(lab, least_squares, algorithm):
    """Nobody else moves the parameters, so that nothing is scaled."""
    found = lab.trained(least_squares(), algorithm)
    assert found == pytest.approx(lab.serial(least_squares(), sgd), rel=1e-12)


@pytest.mark.parametrize("cls", [Agn, Adag])
def test_commits_are_divided_by_the_window_the_last_one_too(lab, tally, cls):
    """With gradients that don't depend on the parameters: 13 batches in windows of 4, 4, 4 and 1."""
    change = -lab.trained(tally(), cls(rate=1.0, window=4), epochs=1)
    portions = Portions(101, lab.batch, lab.batch, seed=7)
    expected = sum(np.sum(portions.indices(n) + 1.0) for n in range(portions.per_epoch)) / 4
    assert change == pytest.approx((1 + np.arange(13)) * expected, rel=1e-14)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_many_replicas_train(lab, least_squares, name):
    model, split = least_squares()
    before = model.loss_and_gradient(split.gather(np.arange(101)))[0]
    algorithm = Diloco(rate=0.02) if name == "diloco" else ALGORITHMS[name]()
    servers = 1 if algorithm.exchange is Exchange.SHARED_MEMORY else 2
    rule = algorithm.default_rule if name == "diloco" else Sgd(0.05)
    found = lab.trained(least_squares(), algorithm, rule=rule, servers=servers, replicas=4, epochs=60, times=RANDOM)
    model.parameters[:] = found
    assert model.loss_and_gradient(split.gather(np.arange(101)))[0] < 0.5 * before


# Staleness.


@pytest.mark.parametrize(("n", "mean"), [(1, 29 / 30), (15, 14.5), (30, 29.0)])
@pytest.mark.parametrize("compute", [Exponential(1.0), Uniform(0.5, 1.5)])
def test_mean_staleness_of_softsync_is_replicas_less_one_over_c(lab, tally, n, mean, compute):
    totals = lab.engine(tally(), Softsync(n), replicas=30, epochs=300, times=Times(compute)).run()
    # Until every replica has pushed once, pushes are fresher.
    assert totals.staleness_sum / totals.staleness.sum() == pytest.approx(mean, rel=0.02)


def test_softsync_of_as_many_as_replicas_at_a_fixed_rate_is_downpour(lab, least_squares):
    options = {"replicas": 4, "rule": Adagrad(0.05), "times": RANDOM}
    softsync = lab.trained(least_squares(), Softsync(4, modulate=False), **options)
    assert np.array_equal(softsync, lab.trained(least_squares(), Downpour(), **options))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_softsync_loses_no_gradient(lab, tally, n):
    model, split = tally()
    found = lab.trained((model, split), Softsync(n, modulate=False), rule=Sgd(1.0), replicas=7, epochs=3, times=RANDOM)
    assert found == pytest.approx(-model.total(101, 3) / (7 // n), rel=1e-12)


def test_delay_compensation_without_delay_or_variance_is_sgd(lab, least_squares):
    assert np.array_equal(lab.trained(least_squares(), Dcasgd(0.5)), lab.trained(least_squares(), Downpour()))
    many = {"replicas": 4, "times": RANDOM}
    assert np.array_equal(
        lab.trained(least_squares(), Dcasgd(0.0), **many), lab.trained(least_squares(), Downpour(), **many)
    )
    assert not np.array_equal(
        lab.trained(least_squares(), Dcasgd(0.5), **many), lab.trained(least_squares(), Downpour(), **many)
    )


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_replica_of_ssp_is_more_than_the_bound_ahead(lab, tally, bound):
    model, split = tally()
    engine = lab.engine((model, split), Ssp(bound), Sgd(1.0), replicas=5, epochs=20, times=Times(Exponential(1.0)))
    gaps, compute = [], model.loss_and_gradient

    def watched(batch):
        clocks = [replica.clock for replica in engine.replicas if replica.clock != np.inf]
        gaps.append(max(clocks) - min(clocks))
        return compute(batch)

    model.loss_and_gradient = watched
    engine.run()
    # While one computes its next step, another may have finished it: that one waits.
    assert max(gaps) == bound + 1
    assert np.array_equal(engine.parameters(), -model.total(101, 20))


def test_names():
    assert all(cls.name == name for name, cls in ALGORITHMS.items() if name != "adag_window")
    assert ALGORITHMS["adag_window"] is Agn


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_run_in_virtual_time_can_be_repeated(lab, least_squares, name):
    algorithm = ALGORITHMS[name]()
    servers = 1 if algorithm.exchange is Exchange.SHARED_MEMORY else 2
    options = {
        "rule": algorithm.default_rule,
        "servers": servers,
        "replicas": 3,
        "times": Times(Uniform(0.5, 1.5), Constant(0.1)),
    }
    first, second = (lab.trained(least_squares(), algorithm, **options) for _ in range(2))
    assert np.array_equal(first, second)


# Shared memory.


class Disjoint:
    """A model in which sample s has a gradient in its own elements only, s mod groups."""

    def __init__(self, size, groups):
        self.parameters = np.linspace(1, 2, size)
        self._groups = groups

    def loss_and_gradient(self, batch: Batch):
        gradient = np.zeros_like(self.parameters)
        for sample in batch.inputs[:, 0].astype(int):
            own = slice(sample % self._groups, None, self._groups)
            gradient[own] += self.parameters[own] * (1 + sample)
        return 0.0, gradient / len(batch.inputs)


def test_hogwild_with_disjoint_supports_is_serial_for_any_interleaving(lab):
    """One sample a batch in effect: every batch of 8 neighbours in the order of use belongs to one group."""
    rule = Sgd(0.01)

    def problem():
        inputs = np.zeros((96, 1), np.float32)
        for group, indices in enumerate(lab.batches((None, ArraySplit(inputs, inputs)), 1)):
            inputs[indices, 0] = group
        return Disjoint(36, 12), ArraySplit(inputs, inputs)

    expected = lab.serial(problem(), lambda x, gradient: x - 0.01 * gradient(x), epochs=1)
    for seed in range(5):
        found = lab.trained(
            problem(), Hogwild(), rule=rule, servers=1, replicas=6, epochs=1, times=Times(Exponential(1.0)), seed=seed
        )
        assert np.array_equal(found, expected)


def test_hogwild_with_one_replica_is_serial_sgd(lab, least_squares):
    assert np.array_equal(lab.trained(least_squares(), Hogwild(), servers=1), lab.serial(least_squares(), sgd))


def test_staleness_of_hogwild_counts_the_updates_between_read_and_write(lab, tally):
    totals = lab.engine(tally(), Hogwild(), servers=1, replicas=5, epochs=80, times=Times(Exponential(1.0))).run()
    assert totals.staleness_sum / totals.staleness.sum() == pytest.approx(4, rel=0.05)


def test_hogwild_touches_only_what_its_gradient_says(lab, tally):
    """Momentum would go on moving the others."""
    model, split = tally()
    compute = model.loss_and_gradient

    def half(batch):
        loss, gradient = compute(batch)
        gradient[int(batch.inputs[0, 0] < 50) :: 2] = 0
        return loss, gradient

    model.loss_and_gradient = half
    expected, velocity = np.zeros(13), np.zeros(13)
    for indices in lab.batches((model, split)):
        gradient = half(split.gather(indices))[1]
        moved = gradient != 0
        velocity[moved] = 0.5 * velocity[moved] + gradient[moved]
        expected[moved] -= velocity[moved]
    found = lab.trained((model, split), Hogwild(), rule=Momentum(1.0, 0.5), servers=1, times=RANDOM)
    assert np.array_equal(found, expected)


class Quadratic:
    """(1 / 2) w^2, whatever the batch."""

    def __init__(self):
        self.parameters = np.ones(1)

    def loss_and_gradient(self, batch: Batch):
        return 0.0, self.parameters.copy()


def test_asynchrony_is_heavy_ball_in_the_mean(lab):
    """With M memoryless workers, E[D'] = (1 - 1/M) E[D] - (eta / M) gradient, for the changes D of a quadratic."""
    replicas, rate, steps, runs = 4, 0.1, 39, 400
    paths = np.zeros((runs, steps))
    for seed in range(runs):
        data = np.zeros((steps * lab.batch, 1), np.float32)
        problem = Quadratic(), ArraySplit(data, data)
        engine = lab.engine(
            problem, Downpour(), rule=Sgd(rate), servers=1, replicas=replicas, epochs=1,
            times=Times(Exponential(1.0)), seed=seed,
        )  # fmt: skip
        path, shard = [], engine.shards[0]
        receive = shard.receive_push

        def watched(*arguments, path=path, shard=shard, receive=receive):
            receive(*arguments)
            path.append(shard.parameters[0])

        shard.receive_push = watched
        engine.run()
        paths[seed] = path
    # The last pushes come from those that have not ended: they are not drawn from all.
    kept = steps - 2 * replicas
    w, change, expected = 1.0, -rate, []
    for _ in range(kept):
        w += change
        expected.append(w)
        change = (1 - 1 / replicas) * change - rate / replicas * w
    error = np.abs(paths[:, :kept].mean(axis=0) - expected)
    assert np.all(error < 4.5 * paths[:, :kept].std(axis=0) / np.sqrt(runs) + 1e-9)
    # Without the implicit momentum it would be another path.
    assert np.abs(np.array(expected) - (1 - rate) ** np.arange(1, kept + 1)).max() > 10 * error.max()
