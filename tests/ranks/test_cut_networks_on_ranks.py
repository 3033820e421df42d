"""Networks cut over the ranks of the world do what uncut ones do."""

import numpy as np
import pytest

from hand_plans import (
    PLANS,
    batch_for,
    by_samples,
    check_training,
    convolved,
    cut,
    dense_by_units,
    in_stages,
    trained,
)

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("planned", PLANS)
def test_twenty_steps_are_those_of_the_uncut_network(comm, group, planned):
    net, plan = planned(comm.size)
    batches = [batch_for(net, samples, seed) for seed, samples in enumerate([8, 7, 8, 2, 1] * 4)]
    results = comm.allgather(trained(cut(net, plan, comm.rank), group, batches))
    check_training(net, plan, results, batches)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("planned", [dense_by_units, by_samples, convolved, in_stages])
def test_on_a_device_it_computes_the_same(comm, group, cupy, planned):
    net, plan = planned(comm.size)
    model = cut(net, plan, comm.rank)
    model.bind(group)
    device = model.on(cupy)
    device.parameters = cupy.asarray(model.parameters)
    for samples in (7, 5, 8):
        batch = batch_for(net, samples)
        uploaded = batch._replace(inputs=cupy.asarray(batch.inputs), targets=cupy.asarray(batch.targets))
        (loss, gradient), (expected, same) = device.loss_and_gradient(uploaded), model.loss_and_gradient(batch)
        assert loss == pytest.approx(expected, rel=1e-12)
        assert isinstance(gradient, cupy.ndarray)
        np.testing.assert_allclose(gradient.get(), same, rtol=0, atol=1e-12)
        found, whole = device.evaluate(uploaded), model.evaluate(batch)
        assert found[:2] == (pytest.approx(whole.loss, rel=1e-12), whole.correct)
    device.unbind()
    model.unbind()


def test_a_sum_has_the_same_bits_on_all_ranks(comm, group):
    own = np.random.default_rng(comm.rank).normal(size=(3, 5))
    total, gathered = own.copy(), comm.allgather(own)
    group.sum(total)
    expected = gathered[0]
    for each in gathered[1:]:
        expected = expected + each
    assert np.array_equal(total, expected)


def test_some_of_the_ranks_are_a_group(comm, group):
    members = [rank for rank in range(comm.size) if rank != 1]
    if comm.rank in members:
        some, same = group.subgroup(members), group.subgroup(members)
        assert some is same
        assert (some.rank, some.size) == (members.index(comm.rank), len(members))
        total = np.full(2, float(comm.rank))
        some.sum(total)
        assert total.tolist() == [sum(members)] * 2
    assert group.share(("from", comm.rank)) == ("from", 0)


def test_long_messages_go_in_pieces(comm, group, monkeypatch):
    from mpidl.engines.mpi import group as module

    monkeypatch.setattr(module, "LARGEST", 3)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    array, brought = np.arange(10.0) + comm.rank, np.zeros(10)
    send, receive = group.send(to, array, 7), group.receive(source, brought, 7)
    for _ in range(2):
        receive.start()
        send.start()
        receive.wait()
        send.wait()
        assert brought.tolist() == (np.arange(10.0) + source).tolist()
        array += 1
        brought -= 1
        source += 1
    send.free()
    receive.free()
