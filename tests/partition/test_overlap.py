"""Gradients travel between ranks while those of weights are computed."""

from dataclasses import dataclass
from threading import get_ident

import pytest

import threads
from hand_plans import batch_for
from mpidl.nn import Dense, LocallyConnected2d, Network
from mpidl.nn.workspaces import Call
from mpidl.partition.group import PersistentMessage
from mpidl.partition.network import CutNetwork
from mpidl.partition.planner import make_plan


@dataclass
class Telling:
    """A group that tells what is sent."""

    group: threads.ThreadGroup
    told: list

    def __getattr__(self, name):
        return getattr(self.group, name)

    def send(self, to, array, tag):
        message = self.group.send(to, array, tag)

        def start():
            self.told.append(("sent", tag))
            message.start()

        return PersistentMessage(start, message.wait, message.free)


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
            own[get_ident()].append((name, call.layer.type))
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
        names = [name for name, _ in told]
        assert "backward_weights" in names
        for place, name in enumerate(names):
            if name == "backward_weights":
                # Between the two parts, the way back has begun.
                assert names[place - 1] == "sent"
                assert "backward_inputs" in names[:place]
