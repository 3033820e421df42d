"""Messages travel between ranks while these compute: values beside rows that need none, gradients beside weights."""

from dataclasses import dataclass
from threading import get_ident

import numpy as np
import pytest

import threads
from hand_plans import batch_for, box
from layer_cases import Alone
from mpidl.nn import Conv2d, Dense, LocallyConnected2d, MaxPool2d, Network
from mpidl.nn.workspaces import Call
from mpidl.parameters import Range
from mpidl.partition.costs import Basis, Costs, plan_seconds
from mpidl.partition.flow import Compute, Receive, flows
from mpidl.partition.group import PersistentMessage
from mpidl.partition.local import interior, interior_parts
from mpidl.partition.network import CutNetwork
from mpidl.partition.planner import make_plan
from mpidl.partition.transfer import Transfer

#: Layers that compute rows apart, and the shape of a sample.
APART = [
    (LocallyConnected2d(3, 3, "tanh"), (11, 7, 2)),
    (LocallyConnected2d(4, [4, 3], "gelu", stride=[3, 2], padding=[[2, 1], [0, 1]]), (17, 6, 3)),
    (LocallyConnected2d(2, 5, "sigmoid"), (13, 8)),
    (Conv2d(3, 3, "tanh"), (11, 7, 2)),
    (Conv2d(6, [4, 3], "gelu", stride=[3, 2], padding=[[2, 1], [0, 1]], groups=3), (17, 6, 3)),
    (Conv2d(5, 5, "sigmoid", padding=2), (13, 9)),
    # By minimal filtering.
    (Conv2d(9, 3, "tanh", padding=1), (19, 7, 8)),
    (Conv2d(8, 5, "relu", padding=[[2, 1], [0, 2]]), (22, 9, 11)),
]


def assert_same(layer, found, expected):
    """Check outputs: a BLAS may round the products of a convolution otherwise where it has fewer rows."""
    if isinstance(layer, Conv2d):
        bound = 100 * np.finfo(found.dtype).eps * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("layer", "shape"), APART)
def test_rows_computed_apart_are_the_same_and_need_nothing_else(layer, shape, dtype):
    alone, height = Alone(layer, shape, samples=5, dtype=dtype, training=False), shape[0]
    (inputs,), expected = alone.inputs, alone.forward().copy()
    apart = 0
    for start, stop in [(0, height - 2), (2, height), (2, height - 2), (3, height - 1), (5, 8), (0, 1)]:
        rows = layer.rows_from(Range(start, stop), shape)
        assert 0 <= rows.start <= rows.stop <= len(expected[0])
        if not rows.size:
            continue
        apart += 1
        known = np.full_like(inputs, np.nan)
        known[:, start:stop] = inputs[:, start:stop]
        alone.outputs.fill(np.nan)
        layer.forward_rows(alone.work, known, alone.outputs, rows)
        known[:] = inputs
        for rest in (Range(0, rows.start), Range(rows.stop, len(expected[0]))):
            if rest.size:
                layer.forward_rows(alone.work, known, alone.outputs, rest)
        layer.end_rows(alone.work, alone.outputs)
        assert_same(layer, alone.outputs, expected)
    assert apart >= 3


@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 1, 0), (3, 1, 1), (4, 3, 2), (1, 2, 0), (5, 2, 4)])
def test_no_row_is_left_out_that_could_be_computed(size, stride, padding):
    height, layer = 23, LocallyConnected2d(1, size, stride=stride, padding=padding)
    down = layer.output_shape((height, height))[0]
    for start in range(height):
        for stop in range(start + 1, height + 1):
            under = [range(max(0, y * stride - padding), min(height, y * stride - padding + size)) for y in range(down)]
            possible = [y for y, rows in enumerate(under) if start <= rows.start and rows.stop <= stop]
            assert list(range(*layer.rows_from(Range(start, stop), (height, height)))) == possible


def test_tiles_are_computed_once():
    layer, shape = Conv2d(9, 3, padding=1), (23, 7, 8)
    found = [layer.rows_from(Range(start, stop), shape) for start in range(9) for stop in range(12, 24)]
    assert all(rows.start % 4 == 0 and (rows.stop % 4 == 0 or rows.stop == 23) for rows in found)
    assert layer.rows_from(Range(2, 20), shape) == Range(4, 16)


def test_few_operations_are_not_worth_it(monkeypatch):
    monkeypatch.setattr("mpidl.partition.local.WORTH", 20_000_000)

    def found(samples):
        source = [box((0, samples), (0, 50), (0, 60), (0, 4)), box((0, samples), (50, 100), (0, 60), (0, 4))]
        halos = [box((0, samples), (0, 51), (0, 60), (0, 4)), box((0, samples), (49, 100), (0, 60), (0, 4))]
        return interior(LocallyConnected2d(8, 3), Transfer(source, halos), 0)

    operations = 2 * 48 * 58 * 9 * 4 * 8
    assert not found(20_000_000 // operations).size
    assert found(20_000_000 // operations + 1) == Range(0, 48)


def test_the_interior_is_what_lies_between_the_halos():
    layer, samples = LocallyConnected2d(2, 3), (0, 4)
    source = [box(samples, (0, 5), (0, 6), (0, 1)), box(samples, (5, 10), (0, 6), (0, 1))]
    halos = [box(samples, (0, 6), (0, 6), (0, 1)), box(samples, (4, 10), (0, 6), (0, 1))]
    assert [interior(layer, Transfer(source, halos), rank) for rank in (0, 1)] == [Range(0, 3), Range(1, 4)]
    # Nothing comes from others; half of each row does; a sum does; all is computed at once.
    assert not interior(layer, Transfer(source, source), 0).size
    columns = [box(samples, (0, 10), (0, 3), (0, 1)), box(samples, (0, 10), (3, 6), (0, 1))]
    assert not interior(layer, Transfer(columns, [box(samples, (0, 10), (0, 6), (0, 1))] * 2), 0).size
    summands = [source[0], box(samples, (4, 10), (0, 6), (0, 1))]
    assert not interior(layer, Transfer(summands, halos), 0).size
    assert not interior(MaxPool2d(3, 1), Transfer(source, halos), 0).size


@dataclass
class Telling:
    """A group that tells what is sent and received."""

    group: threads.ThreadGroup
    told: list

    def __getattr__(self, name):
        return getattr(self.group, name)

    def receive(self, source, array, tag):
        message = self.group.receive(source, array, tag)

        def wait():
            self.told.append("waits")
            message.wait()

        return PersistentMessage(message.start, wait, message.free)

    def send(self, to, array, tag):
        message = self.group.send(to, array, tag)

        def start():
            self.told.append("sent")
            message.start()

        return PersistentMessage(start, message.wait, message.free)


NETWORKS = [
    ([*(LocallyConnected2d(2, 3, "tanh", cut="rows") for _ in range(3)), Dense(4, cut="inputs")], (29, 9, 2)),
    (
        [Conv2d(8, 3, "relu", cut="rows"), Conv2d(9, 3, "tanh", cut="rows"), Conv2d(3, 2, cut="rows"), Dense(4)],
        (33, 7, 2),
    ),
]


@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize(("layers", "shape"), NETWORKS)
def test_a_rank_computes_before_it_waits_and_the_results_are_the_same(layers, shape, partitions, monkeypatch):
    plan = make_plan(layers, shape, partitions, batch=5)
    told = {}

    def tell(call, rows):
        told[get_ident()].append("computes")
        call.layer.forward_rows(call.workspace, call.inputs[0], call.outputs, rows)

    def tell_the_end(call):
        told[get_ident()].append("ends")
        call.layer.end_rows(call.workspace, call.outputs)

    monkeypatch.setattr(Call, "forward_rows", tell)
    monkeypatch.setattr(Call, "end_rows", tell_the_end)

    def compute(group):
        network = Network(layers, shape, seed=1)
        model, own = CutNetwork(network, plan, group.rank), []
        told[get_ident()] = own
        model.bind(Telling(group, own))
        batch = batch_for(network, 5)
        outputs = model.predict(batch.inputs)
        told_of_it = list(own)
        loss, gradient = model.loss_and_gradient(batch)
        return outputs, loss, gradient.copy(), told_of_it

    found = threads.run(partitions, compute)
    with monkeypatch.context() as patch:
        for kind in (LocallyConnected2d, Conv2d):
            patch.setattr(kind, "rows_from", lambda *arguments: Range(0, 0))
        whole = threads.run(partitions, compute)
    interiors = np.sum([np.array(interior_parts(plan, each, 5)) > 0 for each in plan.moving()], axis=0)
    assert max(interiors) == 2
    for rank, (own, its) in enumerate(zip(found, whole, strict=True)):
        (outputs, loss, gradient, order), (expected, its_loss, its_gradient, without) = own, its
        close = {"rtol": 1e-4, "atol": 1e-5} if any(isinstance(each, Conv2d) for each in layers) else {"rtol": 0}
        if outputs is not None:
            np.testing.assert_allclose(outputs, expected, **close)
        np.testing.assert_allclose([loss, *gradient], [its_loss, *its_gradient], **close)
        assert "computes" not in without
        *of_layers, _ = " ".join(order).split("ends")
        assert len(of_layers) == interiors[rank] > 0
        assert all("computes waits" in each and each.endswith("computes ") for each in of_layers)


def test_time_between_nodes_is_hidden_by_what_is_computed_meanwhile():
    layers = [LocallyConnected2d(2, 3, cut="rows"), LocallyConnected2d(2, 3, cut="rows"), Dense(4, cut="inputs")]
    plan = make_plan(layers, (18, 5, 2), 2, batch=6)
    halo = next(each for each in plan.moving() if each.taker == 1)
    # Of 14 rows, each rank has 7 of 16 rows' outputs: 8 rows, and one from the other rank.
    assert interior_parts(plan, halo, 6) == [6 / 7, 6 / 7]
    # The second layer's operations: a third forward, a third for the gradient of its weights.
    part = 2 * 7 * 1 * (9 * 2) * 2 * 6 / 1e4
    for bandwidth in (1e9, 500.0, 300.0, 100.0):
        costs = Costs(flops=1e4, bandwidth=bandwidth, latency=0.0, between_bandwidth=bandwidth, between_latency=0.0)
        within, apart = (plan_seconds(plan, Basis(6, costs, 4, nodes)) for nodes in (None, 1))
        travels = 6 * 3 * 2 * 4 / bandwidth
        assert within - apart == pytest.approx(min(travels, part * 6 / 7) + min(travels, part))


def test_flows_compute_between_sending_and_receiving():
    layers = [LocallyConnected2d(2, 3, cut="rows"), LocallyConnected2d(2, 3, cut="rows"), Dense(4, cut="inputs")]
    plan = make_plan(layers, (18, 5, 2), 2, batch=6)
    for flow in flows(plan, Basis(6, Costs(), 4)):
        place = next(i for i, each in enumerate(flow) if isinstance(each, Receive))
        before, after = flow[place - 1], flow[place + 1]
        assert isinstance(before, Compute)
        assert isinstance(after, Compute)
        assert before.seconds == pytest.approx(6 * after.seconds)


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ([Dense(9, "tanh", cut="units"), Dense(7, "tanh", cut="units"), Dense(5, cut="units")], (6,)),
        (
            [LocallyConnected2d(2, 3, cut="rows"), LocallyConnected2d(2, 3, cut="rows"), Dense(4, cut="inputs")],
            (11, 5, 1),
        ),
    ],
)
def test_inputs_gradients_leave_before_weights_gradients_are_computed(layers, shape, monkeypatch):
    plan = make_plan(layers, shape, 2, batch=6)
    own = {}

    def tell(name, compute):
        def told(call):
            own[get_ident()].append(name)
            compute(call)

        return told

    for name in ("backward", "backward_inputs", "backward_weights"):
        monkeypatch.setattr(Call, name, tell(name, getattr(Call, name)))

    def rank(group):
        network = Network(layers, shape, dtype="float64", seed=1)
        model, told = CutNetwork(network, plan, group.rank), []
        own[get_ident()] = told
        model.bind(Telling(group, told))
        model.loss_and_gradient(batch_for(network, 6))
        return told

    for told in threads.run(2, rank):
        names = [name for name in told if name != "waits"]
        assert "backward_weights" in names
        for place, name in enumerate(names):
            if name == "backward_weights":
                # Between the two parts, the way back has begun.
                assert names[place - 1] == "sent"
                assert "backward_inputs" in names[:place]
