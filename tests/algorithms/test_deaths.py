"""Replicas of a virtual cluster that die, return and are slow."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpidl.algorithms import Averaging, BackupSync, Diloco, Downpour, Hogwild, Softsync, Ssp, Sync
from mpidl.engines.virtual.times import Constant, Death, Exponential, Times
from mpidl.rules import Sgd

EPOCHS, SAMPLES = 4, 101


def run(lab, problem, algorithm, deaths, seed=0, bandwidth=math.inf, **options):
    events = []
    times = Times(Exponential(1.0), Constant(0.01), bandwidth=bandwidth, chunk=16.0, deaths=deaths)
    engine = lab.engine(
        problem, algorithm, rule=Sgd(1.0), replicas=3, epochs=EPOCHS, times=times, seed=seed,
        on_event=lambda kind, rank, role, **details: events.append((kind, role)), **options,
    )  # fmt: skip
    return engine, engine.run(), events


@pytest.mark.parametrize(
    "algorithm",
    [Downpour(), Downpour(overlap=True), Downpour(n_push=3), Ssp(2), Softsync(3, modulate=False)],
)
@given(
    at=st.floats(0.01, 60),
    away=st.floats(0.01, 30) | st.none(),
    other=st.floats(0.01, 60),
    seed=st.integers(0, 9),
    bandwidth=st.sampled_from([math.inf, 200.0]),
)
@settings(max_examples=12)
def test_every_gradient_counts_exactly_once_despite_deaths(lab, tally, algorithm, at, away, other, seed, bandwidth):
    model, split = tally()
    deaths = (Death(1, at, None if away is None else at + away), Death(2, other))
    engine, _, _ = run(lab, (model, split), algorithm, deaths, seed, bandwidth)
    # Who dies when all others are done leaves something behind.
    batches = lab.batches((model, split), EPOCHS)
    left = sum(np.sum(batches[portion] + 1.0) for portion, _ in engine.supply.given_back.values())
    assert np.array_equal(engine.parameters(), (1.0 + np.arange(13)) * left - model.total(SAMPLES, EPOCHS))


@pytest.mark.parametrize(
    ("algorithm", "servers"),
    [
        (Sync(), 2), (BackupSync(1), 2), (BackupSync(1, 0.3), 2), (Diloco(window=1, quorum=2, grace=0.3), 2),
        (Diloco(window=1, quorum=3), 2), (Averaging(), 2), (Hogwild(), 1),
    ],
)  # fmt: skip
def test_those_that_wait_for_each_other_do_not_wait_for_the_dead(lab, tally, algorithm, servers):
    _, totals, events = run(lab, tally(), algorithm, (Death(1, 3.3, 9.0), Death(2, 5.0)), servers=servers)
    # What who died had given to a reduction that never was is computed again.
    again = totals.samples - EPOCHS * SAMPLES
    assert again >= 0 if isinstance(algorithm, Averaging) else again == 0
    assert events == [("failure", "worker 1"), ("failure", "worker 2"), ("recovery", "worker 1")]


def test_if_all_die_the_rest_is_known(lab, tally):
    model, split = tally()
    engine, totals, _ = run(lab, (model, split), Downpour(), tuple(Death(r, 5.0 + r) for r in range(3)))
    assert totals.samples < EPOCHS * SAMPLES
    assert engine.supply.given_back


def test_who_is_done_cannot_die(lab, tally):
    model, split = tally()
    engine, _, events = run(lab, (model, split), Downpour(), (Death(1, 1e6, 2e6),))
    assert events == []
    assert np.array_equal(engine.parameters(), -model.total(SAMPLES, EPOCHS))


@pytest.mark.parametrize(("algorithm", "speed"), [(Downpour(), 2.1), (Softsync(1), 2.1), (Sync(), 0.3), (Ssp(3), 0.3)])
def test_a_slow_replica_slows_those_that_wait_for_it(lab, tally, algorithm, speed):
    """Of three, one takes ten times as long: the sum of speeds is 2.1, the slowest's for all 0.3."""
    times = Times(Constant(1.0), slow={2: 10.0})
    totals = lab.engine(tally(), algorithm, rule=Sgd(1.0), replicas=3, epochs=60, times=times).run()
    assert totals.batches / totals.last_push == pytest.approx(speed, rel=0.05)


@pytest.mark.parametrize(("cores", "speed"), [(None, 3.0), (3, 3.0), (2, 2.0), (1, 1.0)])
def test_replicas_share_cores(lab, tally, cores, speed):
    times = Times(Constant(1.0), cores=cores)
    totals = lab.engine(tally(), Downpour(), rule=Sgd(1.0), replicas=3, epochs=20, times=times).run()
    assert totals.batches / totals.last_push == pytest.approx(speed, rel=0.05)
