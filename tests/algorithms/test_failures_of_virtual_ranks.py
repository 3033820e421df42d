"""Ranks of a virtual cluster that fail: what is taken over, and what a restart costs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mpidl.algorithms import Averaging, BackupSync, Diloco, Downpour, Hogwild, Sandblaster, Softsync, Ssp, Sync
from mpidl.engines.virtual.failures import FailureSimulation
from mpidl.engines.virtual.times import Constant, Exponential, Failures, Times
from mpidl.errors import MpidlError
from mpidl.rules import Sgd
from mpidl.topology.roles import Roles
from mpidl.topology.takeover import Fixed

SAMPLES, REPLICAS = 101, 3
RESTARTS = Failures(Exponential(300.0), every=5.0, saving=0.2, restart=Constant(2.0))
TAKEOVERS = Failures(Exponential(60.0), every=5.0, takeover=0.4, restart=Constant(2.0), fixed=Fixed())


def run(lab, problem, algorithm, failures, epochs=40, seed=0, rate=1.0, **options):
    events = []
    times = Times(Exponential(1.0), Constant(0.01), failures=failures, ranks_per_node=4)
    engine = lab.engine(
        problem, algorithm, rule=rate and Sgd(rate), replicas=REPLICAS, epochs=epochs, times=times, seed=seed,
        on_event=lambda kind, rank, role, **details: events.append(
            ("restart" if "restarts" in details else kind, rank, role)
        ), **options,
    )  # fmt: skip
    totals = engine.run()
    return engine, totals, events, engine.course.figures(totals)


@pytest.mark.parametrize(
    "algorithm", [Downpour(), Downpour(overlap=True), Downpour(n_push=3), Ssp(2), Softsync(3, modulate=False)]
)
@pytest.mark.parametrize("failures", [RESTARTS, TAKEOVERS])
def test_every_gradient_counts_exactly_once_despite_failures(lab, tally, algorithm, failures):
    model, split = tally()
    engine, totals, events, figures = run(lab, (model, split), algorithm, failures)
    # Who dies when all others are done leaves something behind.
    behind = [lab.batches((model, split), 40)[portion] for portion, _ in engine.supply.given_back.values()]
    left = sum(np.sum(batch + 1.0) for batch in behind)
    assert np.array_equal(engine.parameters(), (1.0 + np.arange(13)) * left - model.total(SAMPLES, 40))
    assert totals.samples - totals.again == 40 * SAMPLES - sum(map(len, behind))
    assert len(behind) <= 3
    assert figures["samples_again"] == totals.again
    assert totals.again > 0 or failures is TAKEOVERS
    assert figures["restarts"] > 0
    kinds = [kind for kind, *_ in events]
    assert kinds.count("restart") == figures["restarts"]
    assert ("recovery" in kinds) == (failures is TAKEOVERS)
    assert {role for kind, _, role in events if kind == "recovery"} <= {"coordinator", "server 0", "server 1"}


@pytest.mark.parametrize(
    ("algorithm", "servers", "rate"),
    [
        (Sync(), 2, 0.02), (BackupSync(1, restart=True), 2, 0.02), (Averaging(), 2, 0.02), (Hogwild(), 1, 0.02),
        (Diloco(rate=0.02, window=2, quorum=2, grace=0.3), 2, 1.0), (Sandblaster(history=3), 2, None),
    ],
)  # fmt: skip
def test_every_algorithm_starts_again(lab, least_squares, algorithm, servers, rate):
    model, split = least_squares()
    before = model.loss_and_gradient(split.gather(np.arange(SAMPLES)))[0]
    engine, totals, _, figures = run(
        lab, (model, split), algorithm, replace(RESTARTS, of_rank=Exponential(150.0)), rate=rate, servers=servers
    )
    assert figures["restarts"] > 0
    # L-BFGS ends at the minimum.
    assert rate is None or totals.samples - totals.again >= 40 * SAMPLES
    model.parameters[:] = engine.parameters()
    assert model.loss_and_gradient(split.gather(np.arange(SAMPLES)))[0] < 0.6 * before


def test_a_takeover_delays_those_that_wait_for_the_server_only(lab, tally):
    """All ranks of a node whose servers die: a push waits for a server, and nothing starts again."""
    times = Times(Constant(1.0), ranks_per_node=9)
    plain = lab.engine(tally(), Downpour(), replicas=REPLICAS, epochs=40, times=times).run()
    lives = iter([math.inf, 50.0, *[math.inf] * 99])
    times = replace(times, failures=Failures(lambda random: next(lives), takeover=7.0, fixed=Fixed()))
    engine = lab.engine(tally(), Downpour(), replicas=REPLICAS, epochs=40, times=times)
    totals = engine.run()
    assert totals.samples == plain.samples
    assert totals.trained_seconds == pytest.approx(plain.trained_seconds + 7.0, abs=1.0)
    assert engine.course.figures(totals)["restarts"] == 0


def test_a_standby_rank_outlives_the_last_server(lab, tally):
    """With one server, which dies before the coordinator, the standby plays both."""
    lives = iter([20.0, 10.0, *[math.inf] * 99])
    times = Times(
        Constant(1.0), ranks_per_node=9, standby=1, failures=Failures(lambda random: next(lives), fixed=Fixed())
    )
    recoveries = []
    engine = lab.engine(
        tally(), Downpour(), servers=1, replicas=REPLICAS, epochs=40, times=times,
        on_event=lambda kind, rank, role, **details: recoveries.append((role, details["by"])) if details else None,
    )  # fmt: skip
    totals = engine.run()
    (standby,) = engine.roles.standby
    assert recoveries == [("server 0", standby), ("coordinator", standby)]
    assert totals.again == engine.course.restarts == 0


@pytest.mark.parametrize("least", [1, 2, 3])
def test_a_job_with_too_few_workers_starts_again_with_all(lab, tally, least):
    """After a coordinator and a server come three workers, which die at 10, 20 and 30 s; the run is saved before."""
    lives = iter([math.inf, math.inf, 10.0, 20.0, 30.0, *[math.inf] * 9])
    failures = Failures(lambda random: next(lives), every=7.0, restart=Constant(2.0), fixed=Fixed(), min_workers=least)
    _, totals, events, _ = run(lab, tally(), Downpour(), failures, servers=1)
    kinds = [kind for kind, *_ in events]
    assert (kinds.count("failure"), kinds.count("restart")) == (3, (1, 1, 3)[least - 1])
    assert kinds.index("restart") == 4 - least
    assert totals.again == 0


def test_a_node_dies_with_all_of_its_ranks(lab, tally):
    failures = Failures(None, Exponential(40.0), every=5.0, restart=Constant(1.0))
    _, _, events, figures = run(lab, tally(), Downpour(), failures)
    dead = [rank for kind, rank, _ in events if kind == "failure"]
    # Six ranks are on two nodes of four.
    assert figures["restarts"] == dead.count(0) + dead.count(5) > 0
    assert set(dead) == set(range(6))


def test_failures_that_come_faster_than_restarts_are_one_line(lab, tally):
    failures = Failures(Exponential(6.0), restart=Constant(20.0))
    with pytest.raises(MpidlError, match=r"started again 100 times without a new checkpoint: .*virtual\.restart"):
        run(lab, tally(), Downpour(), failures)


def expected(every, saving, restart, mean):
    """Return the share of time that counts (Daly 2006, equation 20), for failures at any time with a mean between."""
    return every / (mean * math.exp(restart / mean) * math.expm1((every + saving) / mean))


def first_order(every, saving, restart, mean):
    """Return the share of time that counts (Young 1974), for few failures."""
    return every / (every + saving) * (1 - ((every + saving) / 2 + restart) / mean)


class Work:
    """A run that does a second of work in a second."""

    roles = Roles((1,), ((2,),))

    def __init__(self, length):
        self.length, self.now, self.done = length, 0.0, 0.0

    def advance(self, until):
        passed = min(max(0.0, until - self.now), self.length - self.done)
        self.now, self.done = self.now + passed, self.done + passed
        return self.done < self.length

    def pause(self, seconds):
        self.now += seconds

    def save(self):
        return self.done

    def restart(self, saved, at):
        self.now, self.done = at, saved


@pytest.mark.parametrize("every", [20.0, 89.4, 400.0])
@pytest.mark.parametrize(("mean", "restart"), [(1000.0, 10.0), (200.0, 60.0)])
def test_goodput_is_that_of_young_and_daly(every, mean, restart):
    """Three ranks; the interval by Young for 1000 s between failures is 89.4 s."""
    saving, failed, work = 4.0, [], Work(2e6)
    failures = Failures(Exponential(3 * mean), None, every, saving, 0.0, Constant(restart))
    FailureSimulation(work, failures, [0, 0, 0], 1, lambda kind, *_, **details: failed.append(kind)).run()
    share = work.length / work.now
    assert share == pytest.approx(expected(every, saving, restart, mean), rel=0.03)
    if mean > 500:
        assert share == pytest.approx(first_order(every, saving, restart, mean), rel=0.05)
    assert failed.count("failure") == pytest.approx(work.now / mean, rel=0.1)


def test_a_checkpoint_that_a_failure_interrupts_does_not_count():
    """It begins after 20 s and takes 4; a rank dies at 22 s, and again in the restart of 10 s."""
    lives, work = iter([22.0, math.inf, math.inf, 5.0, math.inf]), Work(15.0)
    failures = Failures(lambda random: next(lives), None, 20.0, 4.0, 0.0, Constant(10.0))
    FailureSimulation(work, failures, [0, 0, 0], 1, lambda *_, **details: None).run()
    assert work.now == 15.0
    lives, work = iter([22.0, math.inf, math.inf, 5.0, math.inf]), Work(30.0)
    course = FailureSimulation(work, failures, [0, 0, 0], 1, lambda *_, **details: None)
    course.run()
    # Up at 37 s, a checkpoint from 57 to 61 s.
    assert (work.now, course.restarts) == (71.0, 2)


def test_a_checkpoint_begins_anew_when_the_coordinator_is_taken_over():
    """It begins after 20 s and takes 4; the coordinator dies at 22 s, and is taken over in 3 s."""
    lives, work = iter([22.0, *[math.inf] * 9]), Work(30.0)
    failures = Failures(lambda random: next(lives), None, 20.0, 4.0, 3.0, fixed=Fixed())
    FailureSimulation(work, failures, [0, 0, 0], 1, lambda *_, **details: None).run()
    # Work until 20 s, from 22 to 25 s, and from 29 s on.
    assert work.now == 36.0


def test_the_samples_of_a_coordinator_count_on_after_a_restart(lab, least_squares):
    found = []
    for failures in (Failures(), replace(RESTARTS, of_rank=Exponential(100.0))):
        iterations = {}
        run(
            lab, least_squares(), Sandblaster(history=3), failures, servers=1, rate=None,
            on_iteration=lambda each, iterations=iterations: iterations.update({each.number: each.samples}),
        )  # fmt: skip
        found.append(iterations)
    # A coordinator that starts again evaluates once more where it stands.
    assert len(found[0]) > 5
    assert all(found[1][number] >= samples for number, samples in found[0].items())
    assert found[1] != found[0]


def test_a_run_with_real_arithmetic_meets_young_and_daly(lab, tally):
    """One replica, one server and a coordinator; a gradient of 8 samples takes a second."""
    mean, saving, restart = 200.0, 2.0, 5.0
    every = math.sqrt(2 * saving * mean)
    times = Times(Constant(1.0), failures=Failures(Exponential(3 * mean), None, every, saving, 0.0, Constant(restart)))
    found = []
    for _ in range(2):
        engine = lab.engine(tally(), Downpour(), servers=1, epochs=200, times=times, seed=2)
        found.append(engine.course.figures(engine.run()))
    assert found[0]["goodput"] == pytest.approx(101 / 13 * first_order(every, saving, restart, mean), rel=0.03)
    assert found[0] == found[1]
