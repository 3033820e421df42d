"""The asynchronous family against what its papers prove, on the virtual engine in float64."""

import numpy as np
import pytest

from mpidl.algorithms import ALGORITHMS, Adag, Agn, Dcasgd, Diloco, Downpour, Dynsgd, Exchange, Softsync, Ssp
from mpidl.data import Batch, Portions
from mpidl.data.dataset import ArraySplit
from mpidl.engines.virtual.times import Constant, Exponential, Jitter, Times, Uniform
from mpidl.rules import Adagrad, Sgd

#: The algorithms that train any model.
ANY_MODEL = sorted(set(ALGORITHMS) - {"stacking"})

# Windows of local steps.


@pytest.mark.parametrize("cls", [Agn, Dynsgd, Adag])
def test_one_replica_with_a_window_of_one_is_serial_sgd(lab, least_squares, cls):
    found = lab.trained(least_squares(), cls(rate=0.05, window=1))
    assert found == pytest.approx(lab.serial(least_squares(), lab.sgd), rel=1e-12)


@pytest.mark.parametrize("algorithm", [Dynsgd(rate=0.05, window=5), Adag(rate=0.05, window=5, damping="norm")])
def test_one_replica_is_serial_sgd_for_any_window(lab, least_squares, algorithm):
    """Nobody else moves the parameters, so that nothing is scaled."""
    found = lab.trained(least_squares(), algorithm)
    assert found == pytest.approx(lab.serial(least_squares(), lab.sgd), rel=1e-12)


@pytest.mark.parametrize("cls", [Agn, Adag])
def test_commits_are_divided_by_the_window_the_last_one_too(lab, tally, cls):
    """With gradients that don't depend on the parameters: 13 batches in windows of 4, 4, 4 and 1."""
    change = -lab.trained(tally(), cls(rate=1.0, window=4), epochs=1)
    portions = Portions(101, lab.batch, lab.batch, seed=7)
    expected = sum(np.sum(portions.indices(n) + 1.0) for n in range(portions.per_epoch)) / 4
    assert change == pytest.approx((1 + np.arange(13)) * expected, rel=1e-14)


@pytest.mark.parametrize(("damping", "same"), [("coordinate", True), ("norm", False)])
def test_the_number_of_servers_changes_adag_by_the_norm_alone(lab, least_squares, damping, same):
    """A server knows the norm of its own shard alone."""
    options = {"replicas": 3, "times": Times(Uniform(0.5, 1.5))}
    one, two = (lab.trained(least_squares(), Adag(damping=damping), servers=n, **options) for n in (1, 2))
    assert np.array_equal(one, two) == same


@pytest.mark.parametrize("name", ANY_MODEL)
def test_many_replicas_train(lab, least_squares, name):
    model, split = least_squares()
    before = model.loss_and_gradient(split.gather(np.arange(101)))[0]
    algorithm = Diloco(rate=0.02) if name == "diloco" else ALGORITHMS[name]()
    servers = 1 if algorithm.exchange is Exchange.SHARED_MEMORY else 2
    rule = algorithm.default_rule if name == "diloco" else Sgd(0.05)
    found = lab.trained(
        least_squares(), algorithm, rule=rule, servers=servers, replicas=4, epochs=60, times=lab.random_times
    )
    model.parameters[:] = found
    assert model.loss_and_gradient(split.gather(np.arange(101)))[0] < 0.5 * before


# Staleness.


@pytest.mark.parametrize(("n", "mean"), [(1, 29 / 30), (15, 14.5), (30, 29.0)])
@pytest.mark.parametrize("compute", [Exponential(1.0), Uniform(0.5, 1.5)])
def test_mean_staleness_of_softsync_is_replicas_less_one_over_c(lab, tally, n, mean, compute):
    totals = lab.engine(tally(), Softsync(n), replicas=30, epochs=300, times=Times(compute)).run()
    # Until every replica has pushed once, pushes are fresher.
    assert totals.staleness.sum / totals.staleness.counts.sum() == pytest.approx(mean, rel=0.02)


def test_softsync_of_as_many_as_replicas_at_a_fixed_rate_is_downpour(lab, least_squares):
    options = {"replicas": 4, "rule": Adagrad(0.05), "times": lab.random_times}
    softsync = lab.trained(least_squares(), Softsync(4, modulate=False), **options)
    assert np.array_equal(softsync, lab.trained(least_squares(), Downpour(), **options))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_softsync_loses_no_gradient(lab, tally, n):
    model, split = tally()
    found = lab.trained(
        (model, split), Softsync(n, modulate=False), rule=Sgd(1.0), replicas=7, epochs=3, times=lab.random_times
    )
    assert found == pytest.approx(-model.total(101, 3) / (7 // n), rel=1e-12)


def test_delay_compensation_without_delay_or_variance_is_sgd(lab, least_squares):
    assert np.array_equal(lab.trained(least_squares(), Dcasgd(0.5)), lab.trained(least_squares(), Downpour()))
    plain, without, compensated = (
        lab.trained(least_squares(), each, replicas=4, times=lab.random_times)
        for each in (Downpour(), Dcasgd(0.0), Dcasgd(0.5))
    )
    assert np.array_equal(without, plain)
    assert not np.array_equal(compensated, plain)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_replica_of_ssp_is_more_than_the_bound_ahead(lab, tally, bound):
    model, split = tally()
    gaps, compute = [], model.loss_and_gradient

    def watched(batch):
        clocks = [replica.clock for replica in engine.replicas if replica.clock != np.inf]
        gaps.append(max(clocks) - min(clocks))
        return compute(batch)

    model.loss_and_gradient = watched
    engine = lab.engine((model, split), Ssp(bound), Sgd(1.0), replicas=5, epochs=20, times=Times(Exponential(1.0)))
    engine.run()
    # While one computes its next step, another may have finished it: that one waits.
    assert max(gaps) == bound + 1
    assert np.array_equal(engine.parameters(), -model.total(101, 20))


def test_names():
    assert all(cls.name == name for name, cls in ALGORITHMS.items() if name != "adag_window")
    assert ALGORITHMS["adag_window"] is Agn


@pytest.mark.parametrize("name", ANY_MODEL)
def test_a_run_in_virtual_time_can_be_repeated(lab, least_squares, name):
    algorithm = ALGORITHMS[name]()
    servers = 1 if algorithm.exchange is Exchange.SHARED_MEMORY else 2
    options = {"servers": servers, "replicas": 3, "times": Times(Uniform(0.5, 1.5), Constant(0.1))}
    first, second = (lab.trained(least_squares(), algorithm, rule=algorithm.default_rule, **options) for _ in range(2))
    assert np.array_equal(first, second)


class Quadratic:
    """The sum of (h / 2) w^2 over curvatures h, whatever the batch."""

    def __init__(self, *curvatures):
        self.parameters, self._curvatures = np.ones(len(curvatures)), np.array(curvatures)

    def loss_and_gradient(self, batch: Batch):
        return 0.0, self._curvatures * self.parameters


@pytest.mark.parametrize("name", ["adag", "aeasgd", "agn", "dynsgd"])
def test_defaults_are_stable_with_16_replicas_of_which_one_is_slow(lab, name):
    """At curvatures up to 6, where serial SGD is stable at rates up to 1 / 3."""
    curvatures, replicas = (0.3, 1.0, 3.0, 4.0, 6.0), 16
    data = np.zeros((240 * replicas * lab.batch, 1), np.float32)
    found = lab.trained(
        (Quadratic(*curvatures), ArraySplit(data, data)), ALGORITHMS[name](), servers=1, replicas=replicas, epochs=1,
        times=Times(Jitter(1.0, 0.1), Constant(0.001), slow={0: 5.0}),
    )  # fmt: skip
    assert np.abs(found).max() < 0.02


def test_asynchrony_is_heavy_ball_in_the_mean(lab):
    """With M memoryless workers, E[D'] = (1 - 1/M) E[D] - (eta / M) gradient, for the changes D of a quadratic."""
    replicas, rate, steps, runs = 4, 0.1, 39, 400
    paths = np.zeros((runs, steps))
    for seed in range(runs):
        data = np.zeros((steps * lab.batch, 1), np.float32)
        problem = Quadratic(1.0), ArraySplit(data, data)
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
