"""Runs on virtual clusters that a signal ends at any moment: a run that resumes them applies every gradient once."""

import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpidl
from mpidl.algorithms import Averaging, BackupSync, Diloco, Downpour, Softsync, Ssp
from mpidl.data import Dataset
from mpidl.engines.virtual.times import Constant, Exponential, Times
from mpidl.parameters import shards
from mpidl.rules import Sgd
from mpidl.runs import one_process
from mpidl.storage.checkpoints import latest
from mpidl.storage.position import Position, cut_position

EPOCHS, SAMPLES, BATCH = 4, 101, 8
LATENT = Times(Exponential(1.0), Exponential(0.3), Constant(0.05))
IMMEDIATE = Times(Exponential(1.0))
STEPS = [
    BackupSync(1), BackupSync(1, 0.4), Diloco(rate=1.0, window=1, inner="sgd", quorum=2),
    Diloco(rate=1.0, window=1, inner="sgd", quorum=2, grace=0.4),
]  # fmt: skip
ANY_MOMENT = settings(max_examples=6)


class Interrupted(one_process.OneProcess):
    """A run that gets a signal before a number of batches have been handed out."""

    def __init__(self, *arguments, batches):
        super().__init__(*arguments)
        self._left = batches
        for shard in self._shards:
            assert not np.any(shard.policy.state().get("givers", 0)), "its replicas have given nothing yet"

    def _watch(self):
        self._left -= 1
        if self._left == 0:
            self.interrupt(signal.SIGINT)
        super()._watch()


class Ones:
    """A model whose gradients are all 1: with a rate of 1, each update that is the mean of some is 1."""

    def __init__(self):
        self.parameters = np.zeros(13)

    def loss_and_gradient(self, batch):
        return 0.0, np.ones(13)


def trained(directory, problem, algorithm, replicas, times, batches, monkeypatch, resume):
    """Train on a virtual cluster to the end, or until a signal comes; return the summary."""
    model, split = problem
    with monkeypatch.context() as patch:
        patch.setattr(one_process, "OneProcess", lambda job: Interrupted(job, replicas, times, batches=batches))
        return mpidl.train(
            model, Dataset("test", (1,), None, split, split), algorithm=algorithm, rule=Sgd(1.0), servers=2,
            batch=BATCH, portion=BATCH, epochs=EPOCHS, dir=directory, resume=resume,
            on_interrupt="return",
        )  # fmt: skip


SIGNALS = st.lists(st.integers(1, 30), min_size=1, max_size=3)


@pytest.mark.parametrize("algorithm", [Downpour(), Downpour(n_push=3), Ssp(2), Softsync(3, modulate=False)])
@ANY_MOMENT
@given(signals=SIGNALS, replicas=st.integers(1, 4), times=st.sampled_from([LATENT, IMMEDIATE]))
def test_every_gradient_counts_once(tmp_path_factory, monkeypatch, tally, algorithm, signals, replicas, times):
    directory, model = tmp_path_factory.mktemp("runs"), tally()[0]
    for number, batches in enumerate([*signals, 10_000]):
        problem = tally()
        summary = trained(directory, problem, algorithm, replicas, times, batches, monkeypatch, number > 0)
    assert summary["samples"] == EPOCHS * SAMPLES
    assert np.array_equal(problem[0].parameters, -model.total(SAMPLES, EPOCHS))


@pytest.mark.parametrize("algorithm", STEPS, ids=lambda each: f"{each.name} {each.grace}")
@ANY_MOMENT
@given(signals=SIGNALS, replicas=st.integers(2, 4), times=st.sampled_from([LATENT, IMMEDIATE]))
def test_every_step_is_a_mean(tmp_path_factory, monkeypatch, tally, algorithm, signals, replicas, times):
    """Also of those that gave to it before the signal and of those that began it anew."""
    directory, split = tmp_path_factory.mktemp("runs"), tally()[1]
    for number, batches in enumerate([*signals, 10_000]):
        model = Ones()
        trained(directory, (model, split), algorithm, replicas, times, batches, monkeypatch, number > 0)
        checkpoint = latest(directory / "run")
        for shard in shards(13, 2):
            assert set(checkpoint.read("parameters", shard).tolist()) == {-checkpoint.clock(shard)}


@pytest.mark.parametrize("algorithm", [Averaging(tau=3, dynamic=True), Diloco(rate=0.1, window=3, dynamic=True)])
@pytest.mark.parametrize("seed", range(3))
def test_a_position_has_the_batches_of_all_reductions_that_have_updated_the_shards(lab, tally, algorithm, seed):
    """Also while replicas wait in a reduction for others."""
    problem, updated, steps = tally(), [0], set()
    schedule = lab.schedule(problem, epochs=3)

    def look():
        start = Position(0, 0, 0.0, 0, [])
        position = cut_position(start, engine.positions(), schedule, taken=engine.supply.tickets, seconds=0.0)
        assert position.step == updated[0]
        steps.add(position.step)

    engine = lab.engine(problem, algorithm, replicas=3, epochs=3, times=LATENT, seed=seed, on_batch=look)
    shard = engine.shards[0]
    receive = shard.receive_sum

    def counted(vectors, weights, portions):
        receive(vectors, weights, portions)
        updated[0] += sum(weights)

    shard.receive_sum = counted
    totals = engine.run()
    assert len(steps) > 3
    assert totals.batches == updated[0]
