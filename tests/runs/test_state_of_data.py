"""The state of a user's own training data: saved with its replica, resumed, and unchanged by rehearsals."""

import re

import numpy as np
import pytest

import mpidl
from mpidl.errors import MpidlError, UsageError


class Stages:
    """Samples whose values depend on the number of samples read before; the stage rises with every 16th."""

    def __init__(self):
        self.stage, self.read, self.counts = 0, 0, np.zeros(12, np.int64)

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.read += 1
        self.stage, self.counts[index] = self.read // 16, self.counts[index] + 1
        return np.full(1, self.stage + 1.0), np.zeros(1)

    def state(self):
        return {"read": self.read, "stage": self.stage, "counts": self.counts}

    def load_state(self, state):
        self.read, self.stage, self.counts = state["read"], state["stage"], state["counts"]


class Torchlike(Stages):
    def state_dict(self):
        return super().state()

    def load_state_dict(self, state):
        super().load_state(state)

    state = load_state = None


class Total:
    """A model whose parameter is the sum of all inputs."""

    def __init__(self):
        self.parameters = np.zeros(1)

    def loss_and_gradient(self, batch):
        return 0.0, -batch.inputs.sum(axis=0, dtype=float)


def train(path, data, **keywords):
    model = Total()
    given = {"rule": mpidl.Sgd(1.0), "batch": 4, "epochs": 4, "dir": path, "device": "cpu"} | keywords
    mpidl.train(model, mpidl.Indexed(data), **given)
    return float(model.parameters[0])


@pytest.mark.parametrize("kind", [Stages, Torchlike])
def test_a_resumed_run_goes_on_with_the_state(tmp_path, kind):
    whole, first, second = kind(), kind(), kind()
    expected = sum(1 + read // 16 for read in range(1, 49))
    assert train(tmp_path, whole, name="whole") == expected
    train(tmp_path, first, epochs=1)
    assert train(tmp_path, second, resume=True) == expected
    for data in (whole, second):
        assert (data.read, data.stage, data.counts.tolist()) == (48, 3, [4] * 12)
    assert (first.read, type(second.read)) == (12, int)


def test_what_can_not_be_kept(tmp_path):
    data = Stages()
    data.stage = "easy"
    with pytest.raises(MpidlError, match=r"^data: the training data: its state has a str as stage, expected numbers"):
        train(tmp_path, data)
    text = "data.workers: 2, but the training data have a state, expected 0"
    with pytest.raises(UsageError, match=re.escape(text)):
        mpidl.train(Total(), mpidl.Indexed(Stages(), workers=2), dir=tmp_path)

    class Lost(Stages):
        def load_state(self, state):
            raise KeyError("read")

    with pytest.raises(MpidlError, match=r"^data: the training data: restoring its state raised KeyError: 'read'"):
        train(tmp_path, Lost())
