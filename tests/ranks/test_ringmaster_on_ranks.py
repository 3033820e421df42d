"""Ringmaster with a slow worker: each sample is used once, stopped gradients are no pushes, and time is saved."""

import time

import numpy as np
import pytest
from small_runs import dataset

import mpidl
from mpidl.algorithms import Ringmaster
from mpidl.algorithms.requests import Gradient
from mpidl.data import Batch
from mpidl.rules import Sgd

pytestmark = pytest.mark.mpi(min_size=4)
SAMPLES, EPOCHS, BATCH = 101, 4, 4
#: A worker that takes ten times as long as the others.
SLOW = {"gradient_seconds": 0.003, "slow_worker": 0, "slow_factor": 10.0}


@pytest.mark.parametrize("transport", ["windows", "messages"])
@pytest.mark.parametrize("servers", [1, 2])
def test_each_sample_is_used_once(comm, shared_path, tally, watch, transport, servers):
    model, split = tally()
    computed, start = [], model.parameters.copy()

    def see(request, gradient, parameters):
        if isinstance(request, Gradient):
            computed.append(None if gradient is None else gradient.copy())

    watch(Ringmaster, see)
    summary = mpidl.train(
        model, dataset(split), algorithm=Ringmaster(max_delay=3), rule=Sgd(1.0), epochs=EPOCHS, batch=BATCH,
        portion=BATCH, dir=shared_path, servers=servers if comm.size > servers + 2 else 1, debug=SLOW,
        config={"topology": {"transport": transport}},
    )  # fmt: skip
    of_all = [each for own in comm.allgather(computed) for each in own]
    pushed = [each for each in of_all if each is not None]
    batches = EPOCHS * -(-SAMPLES // BATCH)
    assert (summary["samples"], summary["pushes"], len(pushed)) == (EPOCHS * SAMPLES, batches, batches)
    assert summary["dropped"] == 0
    assert summary.get("gradients_stopped", 0) == len(of_all) - batches
    if comm.rank == comm.size - 1:
        assert model.parameters == pytest.approx(start - np.sum(pushed, axis=0), rel=1e-12)


def test_without_stops_servers_drop_what_is_too_late(comm, shared_path, tally):
    model, split = tally()
    summary = mpidl.train(
        model, dataset(split), algorithm=Ringmaster(max_delay=2, stops=False), rule=Sgd(1.0), epochs=EPOCHS,
        batch=BATCH, portion=BATCH, dir=shared_path, debug=SLOW,
    )  # fmt: skip
    assert summary["samples"] == EPOCHS * SAMPLES
    assert summary["dropped"] > 0
    assert "gradients_stopped" not in summary


@pytest.fixture
def loop_over(comm, shared_path, tally):
    """Return a function that trains by a loop, whose last rank is slow, and returns the summary and the model's sum."""

    def over(loop, data, **options):
        model, split = tally()
        start = model.parameters.copy()

        def own(replica):
            loop(replica, model, 0.03 if comm.rank == comm.size - 1 else 0.003)

        summary = mpidl.loop(
            own, model, dataset(split) if data else None, algorithm=Ringmaster(max_delay=1), rule=Sgd(1.0), batch=BATCH,
            portion=BATCH, dir=shared_path, **options,
        )  # fmt: skip
        return summary, (start - model.parameters)[0]

    return over


def test_a_loop_gets_a_batch_again_whose_gradient_is_too_late(comm, loop_over):
    yielded = []

    def loop(replica, model, seconds):
        for batch in replica.batches():
            yielded.append(len(batch[0]))
            time.sleep(seconds)
            replica.step(gradient=model.loss_and_gradient(Batch(*batch))[1])

    summary, total = loop_over(loop, data=True, epochs=EPOCHS)
    assert summary["samples"] == EPOCHS * SAMPLES
    assert sum(map(len, comm.allgather(yielded))) == summary["pushes"] + summary["gradients_stopped"]
    assert summary["gradients_stopped"] > 0
    assert total == EPOCHS * SAMPLES * (SAMPLES + 1) / 2


def test_a_gradient_of_several_batches_of_a_loop_is_used(loop_over):
    def loop(replica, model, seconds):
        gradients = []
        for batch in replica.batches():
            gradients.append(model.loss_and_gradient(Batch(*batch))[1])
            time.sleep(seconds)
            if len(gradients) == 2:
                replica.step(gradient=np.sum(gradients, axis=0))
                gradients.clear()
        if gradients:
            replica.step(gradient=gradients[0])

    summary, total = loop_over(loop, data=True, epochs=EPOCHS)
    assert summary["samples"] == EPOCHS * SAMPLES
    assert total == EPOCHS * SAMPLES * (SAMPLES + 1) / 2


def test_an_item_of_a_loop_comes_again_whose_gradient_is_too_late(comm, loop_over):
    items = []

    def loop(replica, model, seconds):
        for item in replica.share(range(1000)):
            items.append(item)
            time.sleep(seconds)
            replica.step(gradient=np.ones(model.parameters.size))

    summary, total = loop_over(loop, data=False, steps=60)
    each = comm.allgather(items)
    assert total == summary["pushes"] == 60
    assert sum(map(len, each)) == 60 + summary["gradients_stopped"]
    assert summary["gradients_stopped"] > 0
    for own in each:
        assert own == sorted(own)
        assert {*own} == {*range(len({*own}))}
