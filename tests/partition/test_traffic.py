"""What cut networks move, send and allocate."""

import threading
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest

import threads
from hand_plans import Cutter, batch_for, by_samples, cut, dense_by_units, network, unlike
from mpidl.nn import (
    Add,
    AveragePool2d,
    BatchNormalisation,
    Concatenate,
    Conv2d,
    Dense,
    Flatten,
    LocalContrastNormalisation,
    LocallyConnected2d,
    MaxPool2d,
)
from mpidl.parameters import Box, Range, split
from mpidl.partition.costs import Costs
from mpidl.partition.group import PersistentMessage
from mpidl.partition.plan import TensorPart
from mpidl.partition.planner import make_plan


def between_layers(plan, samples=1):
    """Return the elements that move forward, without the outputs' way to the loss."""
    return [(move.name, move.what, move.elements.sum()) for move in plan.traffic(samples) if move.name != "outputs"]


def test_locally_connected_layers_move_halos_only():
    layers = [LocallyConnected2d(3, 5, padding="same", cut="rows", name=name) for name in ("first", "second")]
    for partitions, height in ((2, 10), (3, 12), (4, 12), (6, 18)):
        plan = make_plan(layers, (height, 7, 2), partitions, batch=4)
        # On both sides of each border, two rows of seven pixels of three maps.
        assert between_layers(plan, 4) == [("second", "values", 4 * (partitions - 1) * 2 * 2 * 7 * 3)]
        assert max(plan.parameters) == min(plan.parameters)


def test_local_contrast_takes_twice_its_radius():
    layers = [Conv2d(2, 1, cut="rows"), LocalContrastNormalisation(5, cut="rows", name="contrast")]
    plan = make_plan(layers, (24, 5, 3), 3, batch=1)
    assert ("contrast", "values", 2 * 2 * 4 * 5 * 2) in between_layers(plan)


def test_pooling_with_a_stride_of_its_size_moves_nothing():
    layers = [LocallyConnected2d(3, 3, padding="same", cut="rows"), MaxPool2d(2, cut="rows", name="pool")]
    assert between_layers(make_plan(layers, (16, 6), 4, batch=1)) == []


@pytest.mark.parametrize("partitions", [2, 3, 4, 6])
def test_a_block_diagonal_network_moves_nothing_and_is_found(partitions):
    layers = [
        Conv2d(24, 3, "relu", padding="same", groups=12),
        Conv2d(24, 3, padding="same", groups=12),
        BatchNormalisation("relu"),
        MaxPool2d(2),
        Conv2d(48, 3, "relu", groups=12),
    ]
    # Parameters are many and pixels few, as where dividing channels pays.
    plan = make_plan(layers, (16, 16, 12), partitions, batch=256, costs=Costs(latency=1e-3))
    assert [step.cut for step in plan.steps] == ["channels"] * 5
    assert between_layers(plan, 256) == []


def test_two_halves_of_alexnet_move_at_their_crosstalk_only():
    layers = [
        Conv2d(6, 3, "relu", padding="same", cut="channels", name="first"),
        Conv2d(8, 3, "relu", padding="same", groups=2, cut="channels", name="second"),
        Conv2d(10, 3, "relu", padding="same", cut="channels", name="third"),
        Conv2d(12, 3, "relu", padding="same", groups=2, cut="channels", name="fourth"),
        Conv2d(4, 3, "relu", padding="same", groups=2, cut="channels", name="fifth"),
    ]
    plan = make_plan(layers, (7, 9, 3), 2, batch=1)
    # Each half takes all of the other's maps, and nothing else.
    assert between_layers(plan) == [("third", "values", 7 * 9 * 8)]
    assert plan.traffic(1)[0].elements.tolist() == [[0, 7 * 9 * 4], [7 * 9 * 4, 0]]
    grouped = [plan.steps[index].layers[1].groups for index in range(5)]
    assert grouped == [1, 1, 1, 1, 1]


def test_a_value_that_several_units_need_moves_once():
    layers = [Dense(12, "relu", cut="units"), Dense(60, cut="units", name="second")]
    plan = make_plan(layers, (5,), 3, batch=7)
    # Each rank lacks the eight values of the others, for seven samples, however many units take them.
    assert between_layers(plan, 7) == [("second", "values", 3 * 8 * 7)]
    outputs = plan.traffic(7)[-1]
    assert (outputs.name, outputs.what) == ("outputs", "values")
    # Shares of 3, 2 and 2 samples: who has them lacks 40 units of each.
    assert outputs.elements.sum(axis=0).tolist() == [3 * 40, 2 * 40, 2 * 40]


def test_a_value_that_two_layers_take_in_the_same_way_moves_once():
    layers = [
        Conv2d(4, 1, cut="rows", name="stem"),
        Conv2d(2, 3, padding="same", cut="rows", name="left", inputs=("stem",)),
        Conv2d(3, 3, padding="same", cut="rows", name="right", inputs=("stem",)),
        Concatenate(cut="rows", inputs=("left", "right")),
    ]
    plan = make_plan(layers, (8, 5, 2), 2, batch=1)
    assert between_layers(plan)[0] == ("left", "values", 2 * 5 * 4)
    assert [what for _, what, _ in between_layers(plan)] == ["values"] + 3 * ["parameters"]


def test_summands_go_where_their_sum_is_needed():
    layers = [Dense(12, "relu", cut="inputs", name="first"), Dense(6, cut="inputs", name="second")]
    plan = make_plan(layers, (9,), 3, batch=1)
    assert [type(step.layers[0]).__name__ for step in plan.steps] == ["Dense", "Activation", "Dense"]
    # Each rank sends the other two their four units; then all have what they need of the second layer's inputs.
    assert between_layers(plan) == [("first", "values", 3 * 2 * 4)]
    assert ["bias" in tensors for tensors in plan.steps[0].tensors] == [True, False, False]


def test_by_samples_parameters_move_and_values_do_not():
    layers = [Conv2d(4, 3, cut="samples", name="first"), AveragePool2d(2, cut="samples")]
    plan = make_plan(layers, (8, 8, 3), 4, batch=8)
    size = 3 * 3 * 3 * 4 + 4
    assert between_layers(plan, 8) == [("first", "parameters", 3 * size)]
    # Each rank sends its quarter of the tensors to three others, and the gradients of theirs back.
    assert plan.traffic(8)[0].sent == (2 * 3 * size // 4,) * 4
    assert plan.parameters == (size // 4,) * 4
    assert plan.operations(8) == (3 * 2 * layers[0].operations((8, 8, 3)),) * 4
    assert plan.operations(2) == (3 * layers[0].operations((8, 8, 3)),) * 2 + (0, 0)


@dataclass
class Counting:
    """A group that counts the bytes that are sent."""

    group: threads.ThreadGroup
    nbytes: int = 0

    def __getattr__(self, name):
        return getattr(self.group, name)

    def send(self, to, array, tag):
        message = self.group.send(to, array, tag)

        def start():
            self.nbytes += array.nbytes
            message.start()

        return PersistentMessage(start, message.wait, message.free)


def elements_sent(net, plan, samples):
    """Return how many elements all ranks send for a loss and its gradient."""
    batch = batch_for(net, samples)

    def work(group):
        counting = Counting(group)
        model = cut(net, plan, group.rank)
        model.bind(counting)
        model.loss_and_gradient(batch)
        model.loss_and_gradient(batch)
        return counting.nbytes / 16

    return sum(threads.run(plan.partitions, work))


def to_shares(samples, sizes):
    """Return how many elements move where what each rank has of every output goes to shares of the samples."""
    parts = len(sizes)
    return sum((samples - own.size) * size for own, size in zip(split(samples, parts), sizes, strict=True))


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_dense_layers_by_units_gather_what_each_computes(parts):
    net, plan = dense_by_units(parts)
    samples = 6
    last = to_shares(samples, [part.size for part in split(5, parts)])
    assert elements_sent(net, plan, samples) == 2 * (samples * (13 + 11) * (parts - 1) + last)


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_shared_tensors_are_gathered_once_and_summed_once(parts):
    net, plan = by_samples(parts)
    assert elements_sent(net, plan, 6) == 2 * (parts - 1) * net.layout.size


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_locally_connected_layers_exchange_halos_only(parts):
    layers = [LocallyConnected2d(2, 1), LocallyConnected2d(3, 3, "tanh"), LocallyConnected2d(3, 1), Flatten()]
    net = network(layers, (14, 5, 1))
    rows = split(12, parts)
    boxes = [Box((Range(own.start * 9, own.stop * 9),)) for own in rows]
    images = [TensorPart(Box((own, Range(0, 3), Range(0, 3)))) for own in rows]
    flat = list(map(TensorPart, boxes))
    cutter = Cutter(net, parts).rows(0).rows(1).rows(2).step(3, [Flatten()] * parts, [images], flat)
    reached = [Range(own.start, own.stop + 2) for own in rows]
    halo = sum(own.size - own.intersect(held).size for own, held in zip(reached, split(14, parts), strict=True))
    last = to_shares(5, [box.size for box in boxes])
    assert elements_sent(net, cutter.plan(), 5) == 2 * (5 * halo * 5 * 2 + last)


def test_a_value_that_two_layers_take_alike_travels_once():
    layers = [
        Dense(8, "tanh", name="stem"),
        Dense(6, "tanh", name="one"),
        Dense(6, "tanh", inputs=("stem",), name="other"),
        Add(inputs=("one", "other")),
    ]
    net = network(layers, (4,))
    plan = Cutter(net, 3).units(0).units(1).units(2).alike(3).plan()
    assert elements_sent(net, plan, 6) == 2 * (6 * 8 * 2 + to_shares(6, [2, 2, 2]))


def wide():
    net = network([Dense(257, "tanh"), Dense(255, "tanh"), Dense(256, "tanh"), Dense(9)], (259,))
    return net, Cutter(net, 3).units(0).inputs(1).samples(2).whole(3, 1).plan(), 512, 250_000


def local():
    net = network([LocallyConnected2d(4, 3, "tanh"), LocallyConnected2d(3, 3), Dense(9)], (31, 20, 3))
    return net, Cutter(net, 3).rows(0).rows(1).samples(2).plan(), 256, 400_000


@pytest.mark.parametrize("planned", [wide, local])
def test_a_warm_step_allocates_no_activation_and_no_tensor(planned):
    """Allow for what NumPy's ufuncs and the loss allocate on each rank, which is less than the least message."""
    net, plan, most_samples, limit = planned()
    batches = [batch_for(net, samples) for samples in (most_samples, most_samples - 1, 7)]
    peaks = []
    turn = threading.Barrier(3)

    def work(group):
        model = cut(net, plan, group.rank)
        model.bind(group)
        for batch in batches:
            model.loss_and_gradient(batch)
            model.evaluate(batch)
        turn.wait()
        if group.rank == 0:
            tracemalloc.start()
        turn.wait()
        for batch in batches[::2]:
            model.loss_and_gradient(batch)
        turn.wait()
        if group.rank == 0:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
        turn.wait()
        for batch in batches * 2:
            model.loss_and_gradient(batch)
        turn.wait()
        if group.rank == 0:
            after, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            peaks.append((after - before, peak - before))

    threads.run(3, work)
    ((left, most),) = peaks
    assert left < 8192
    assert most < limit


def test_a_rank_allocates_its_own_parts_only():
    net = network([Dense(900, "tanh"), Dense(800, "tanh"), Dense(3)], (700,))
    plan = Cutter(net, 4).units(0).units(1).samples(2).plan()
    whole = net.layout.size * 8

    def parameters(group):
        return cut(net, plan, group.rank)

    models = threads.run(4, parameters)
    assert sum(model.slice.size for model in models) == net.layout.size
    batch = batch_for(net, 16)
    vectors = [np.zeros(model.slice.size) for model in models]
    tracemalloc.start()

    def work(group):
        model = models[group.rank]
        model.parameters = vectors[group.rank]
        model.bind(group)
        model.loss_and_gradient(batch)

    threads.run(4, work)
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    told = sum(model.activation_bytes(16) for model in models)
    # Gradients, arrays and packed messages.
    assert whole + told < allocated < 1.2 * (whole + told)


def test_the_bytes_of_activations_are_those_that_a_batch_allocates():
    net, plan = unlike(3)
    model = cut(net, plan, 2)
    told = model.activation_bytes(3000) - model.activation_bytes(0)
    tracemalloc.start()
    work = model._passes.take(3000)
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(work.calls) == 6
    assert told == pytest.approx(allocated, rel=0.02)
