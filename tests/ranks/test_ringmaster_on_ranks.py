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


def test_a_loop_gets_a_batch_again_whose_gradient_is_too_late(comm, shared_path, tally):
    model, split = tally()
    start, yielded = model.parameters.copy(), []

    def loop(replica):
        for batch in replica.batches():
            yielded.append(len(batch[0]))
            time.sleep(0.03 if comm.rank == comm.size - 1 else 0.003)
            replica.step(gradient=model.loss_and_gradient(Batch(*batch))[1])

    summary = mpidl.loop(
        loop, model, dataset(split), algorithm=Ringmaster(max_delay=1), rule=Sgd(1.0), epochs=EPOCHS, batch=BATCH,
        portion=BATCH, dir=shared_path,
    )  # fmt: skip
    assert summary["samples"] == EPOCHS * SAMPLES
    assert sum(map(len, comm.allgather(yielded))) == summary["pushes"] + summary["gradients_stopped"]
    assert summary["gradients_stopped"] > 0
    assert np.array_equal(model.parameters, start - model.total(SAMPLES, EPOCHS))
