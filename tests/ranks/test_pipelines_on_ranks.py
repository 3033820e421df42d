"""Pipelines over the ranks of the world compute what uncut networks do."""

import numpy as np
import pytest

from hand_plans import batch_for, check_training, network, trained, uncut
from mpidl.nn import Dense, Dropout, Network
from mpidl.partition.network import CutNetwork
from mpidl.partition.planner import make_plan
from mpidl.partition.schedules import SCHEDULES

pytestmark = pytest.mark.mpi
schedules = pytest.mark.parametrize("schedule", SCHEDULES)


def stages_of(comm):
    """Return as many stages as there are ranks, and stages of two ranks where they are four."""
    return [comm.size, 2] if comm.size == 4 else [comm.size]


def piped(net, plan, comm, schedule, micro_batches):
    whole = Network(net.layers, net.input_shape, dtype="float64", seed=3)
    return CutNetwork(whole, plan, comm.rank, schedule=schedule, micro_batches=micro_batches)


@schedules
def test_training_is_that_of_the_uncut_network(comm, group, schedule):
    for stages in stages_of(comm):
        net = network([Dense(11, "tanh"), Dense(9, "sigmoid"), Dropout(0.3), Dense(8, "gelu"), Dense(5)], (6,))
        batches = [batch_for(net, samples, seed) for seed, samples in enumerate([11, 7, 11, 2, 1, 12])]
        plan = make_plan(net.layers, net.input_shape, comm.size, batch=11, stages=stages)
        results = comm.allgather(trained(piped(net, plan, comm, schedule, 5), group, batches))
        check_training(net, plan, results, batches)


@pytest.mark.mpi(min_size=3)
@schedules
def test_messages_that_mpi_sends_only_when_they_are_received(comm, group, schedule):
    net = network([Dense(255, "tanh"), Dense(257, "tanh"), Dense(256, "tanh"), Dense(3)], (5,))
    batch = batch_for(net, 1603)
    for stages in stages_of(comm):
        plan = make_plan(net.layers, net.input_shape, comm.size, batch=1603, stages=stages)
        model = piped(net, plan, comm, schedule, 8)
        model.bind(group)
        for _ in range(2):
            loss, gradient = model.loss_and_gradient(batch)
        found = uncut(plan, np.concatenate(comm.allgather(gradient)))
        model.unbind()
        expected, whole = net.loss_and_gradient(batch)
        assert loss == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(found, whole, rtol=0, atol=1e-12)


@pytest.mark.mpi(min_size=4)
@schedules
def test_on_a_device_it_computes_the_same(comm, group, cupy, schedule):
    net = network([Dense(11, "tanh"), Dense(9, "sigmoid"), Dense(8, "gelu"), Dense(5)], (6,))
    plan = make_plan(net.layers, net.input_shape, comm.size, batch=8, stages=comm.size)
    model = piped(net, plan, comm, schedule, 3)
    model.bind(group)
    device = model.on(cupy)
    device.parameters = cupy.asarray(model.parameters)
    for samples in (7, 8):
        batch = batch_for(net, samples)
        uploaded = batch._replace(inputs=cupy.asarray(batch.inputs), targets=cupy.asarray(batch.targets))
        (loss, gradient), (expected, same) = device.loss_and_gradient(uploaded), model.loss_and_gradient(batch)
        assert loss == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(gradient.get(), same, rtol=0, atol=1e-12)
    device.unbind()
    model.unbind()
