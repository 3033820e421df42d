"""Rates that change in the course of a run, and statistics that rules leave alone, with every algorithm."""

import numpy as np
import pytest

from mpidl.algorithms import ALGORITHMS, Downpour, Softsync
from mpidl.config import from_dict
from mpidl.data import Batch
from mpidl.engines.virtual.times import Exponential, Times
from mpidl.job.build import build
from mpidl.job.placed import place
from mpidl.parameters import Range
from mpidl.rules import Momentum, Sgd
from mpidl.rules.schedule import RateSchedule

#: A line search takes the place of rates, and leaves no place for statistics.
NAMES = sorted({cls.name for cls in ALGORITHMS.values()} - {"sandblaster", "stacking"})
TIMES = Times(compute=Exponential(1.0), latency=Exponential(0.1))
#: Elements of the parameters that are statistics: more than one, in the second shard of two and at its edge.
STATISTICS = [Range(3, 5), Range(6, 7)]


class Watching:
    """Least squares beside running means of what its batches hold, which are to go to the data's mean."""

    statistics = STATISTICS

    def __init__(self, problem, momentum=0.02):
        self._model, self._momentum = problem[0], momentum
        self.parameters = problem[0].parameters.copy()
        for part in STATISTICS:
            self.parameters[slice(*part)] = 0

    def loss_and_gradient(self, batch: Batch):
        self._model.parameters[:] = self.parameters
        loss, gradient = self._model.loss_and_gradient(batch)
        for part in STATISTICS:
            running = self.parameters[slice(*part)]
            gradient[slice(*part)] = self._momentum * (running - 5.0 - batch.targets.mean())
        return loss, gradient


@pytest.mark.parametrize("name", NAMES)
def test_statistics_go_to_their_mean_whatever_the_rule(name, lab, least_squares):
    problem = least_squares()
    model = Watching(problem)
    algorithm = ALGORITHMS[name]()
    rule = None if algorithm.default_rule is None else Momentum(1e-4, 0.9)
    engine = lab.engine(
        (model, problem[1]), algorithm, rule=rule, replicas=3, epochs=120, times=TIMES,
        of_steps={"statistics": STATISTICS}, of_shards={"statistics": STATISTICS},
        servers=1 if name == "hogwild" else 2,
    )  # fmt: skip
    engine.run()
    expected = 5.0 + problem[1].gather(np.arange(problem[1].samples)).targets.mean()
    for part in STATISTICS:
        np.testing.assert_allclose(engine.parameters()[slice(*part)], expected, rtol=0.1)


def test_a_rule_subtracts_the_gradient_of_statistics_as_it_is():
    rule, parameters = Momentum(0.5, 0.9), np.arange(5.0)
    state = rule.init(parameters)
    for step in (1, 2):
        rule.update(parameters, state, np.full(5, 0.25), step, sparing=[(1, 3)])
    np.testing.assert_array_equal(parameters[1:3], [0.5, 1.5])
    assert parameters[0] == -0.5 * 0.25 - 0.5 * (0.25 * 1.9)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (RateSchedule(), [1, 1, 1, 1]),
        (RateSchedule("steps", [2, 3], 0.1), [1, 1, 0.1, 0.01]),
        (RateSchedule("cosine"), [1, 0.853553, 0.5, 0.146447]),
        (RateSchedule(warm_up=2), [0, 0.5, 1, 1]),
        (RateSchedule("cosine", warm_up=2), [0, 0.5, 1, 0.5]),
        (RateSchedule("linear"), [1, 0.75, 0.5, 0.25]),
        (RateSchedule("linear", warm_up=2), [0, 0.5, 1, 0.5]),
        (RateSchedule("linear", warm_up=5), [0, 0.2, 0.4, 0.6]),
        (RateSchedule("one_cycle", warm_up=2), [0.04, 0.52, 1, 0.500002]),
        (RateSchedule("one_cycle"), [0.04, 0.935692, 0.811746, 0.28306]),
        (RateSchedule("one_cycle", warm_up=4), [0.04, 0.180589, 0.52, 0.859411]),
    ],
)
def test_multipliers(schedule, expected):
    assert [schedule.at(epoch, 4) for epoch in range(4)] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_rate_of_nothing_moves_nothing(name, lab, least_squares):
    """Every rate of every algorithm follows the schedule, of servers and of replicas."""
    algorithm = ALGORITHMS[name]()
    problem = least_squares()
    options = {"replicas": 2, "times": TIMES, "servers": 1 if name == "hogwild" else 2}
    moved = lab.trained(problem, algorithm, **options)
    start = least_squares()[0].parameters
    assert not np.allclose(moved, start, rtol=0, atol=1e-6)
    nothing = {"rate_at": lambda batch: 0.0}
    still = lab.trained(least_squares(), algorithm, of_shards=nothing, of_steps=nothing, **options)
    np.testing.assert_allclose(still, start, rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", [Downpour(), Softsync(n=1)])
def test_a_schedule_is_that_of_serial_sgd(algorithm, lab, least_squares):
    per_epoch = len(lab.batches(least_squares(), epochs=1))
    rates = RateSchedule("steps", [1], 0.5, warm_up=0.5)
    taken = iter(range(10**6))

    def update(x, gradient):
        return x - 0.05 * rates.at((next(taken) + 0.5) / per_epoch, 2) * gradient(x)

    serial = lab.serial(least_squares(), update)
    found = lab.trained(
        least_squares(), algorithm, rule=Sgd(0.05),
        of_shards={"rate_at": lambda batch: rates.at((batch + 0.5) / per_epoch, 2)},
    )  # fmt: skip
    np.testing.assert_array_equal(found, serial)


@pytest.mark.parametrize(("algorithm", "factor"), [("downpour", 0.5), ("averaging", 0.5), ("diloco", 1.0)])
def test_outer_rates_do_not_follow_the_schedule(algorithm, factor):
    sections = {
        "data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]},
        "algorithm": {"name": algorithm}, "rate": {"schedule": "steps", "epochs": [1], "factor": 0.5},
        "run": {"epochs": 2},
    }  # fmt: skip
    job = place(build(from_dict(sections)), 1)
    last = 2 * job.schedule.portions.per_epoch * job.schedule.portions.per_portion - 1
    assert job.scheduled_rule.rate_at(last) == factor
    assert job.rate_at(last) == 0.5


@pytest.mark.parametrize(
    ("algorithm", "rule", "note"),
    [
        (
            "diloco",
            "adagrad",
            "server.rule: adagrad (rate 0.01) is the outer rule of diloco now; its own default, by "
            "--set server.rule=default, is nesterov (rate 0.7, momentum 0.9)",
        ),
        ("diloco", None, None),
        ("downpour", "adam", None),
    ],
)
def test_an_outer_rule_of_another_kind_is_said(algorithm, rule, note):
    sections = {
        "data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]},
        "algorithm": {"name": algorithm}, "server": {} if rule is None else {"rule": rule},
    }  # fmt: skip
    assert build(from_dict(sections)).notes == ([] if note is None else [note])
