"""Rates that fall on a plateau: workers learn of it, and servers and workers with shards reduce their rates."""

import json

import numpy as np
import pytest

import mpidl

pytestmark = pytest.mark.mpi(min_size=4)
EPOCHS, FACTOR = 12, 0.5


class Flat:
    """A model whose evaluations don't change; plain SGD with a rate of 1 subtracts the factor at each step."""

    def __init__(self):
        self.parameters = np.zeros(3)

    def loss_and_gradient(self, batch):
        return 1.0, np.ones(3)

    def evaluate(self, batch):
        return 5.0 * len(batch.inputs), 0


@pytest.mark.parametrize("transport", ["windows", "messages"])
@pytest.mark.parametrize("algorithm", [mpidl.Downpour(), mpidl.Sync()])
def test_rates_fall_on_a_plateau(comm, shared_path, algorithm, transport):
    model, inputs, name = Flat(), np.zeros((64, 1)), f"{algorithm.name}-{transport}"
    keywords = {"algorithm": algorithm, "rule": mpidl.Sgd(1.0), "batch": 4, "dir": shared_path, "name": name}
    keywords |= {"rate": {"schedule": "plateau", "factor": FACTOR, "patience": 2}, "transport": transport}
    keywords |= {"debug": {"gradient_seconds": 0.01}, "device": "cpu"}
    data = mpidl.Arrays((inputs, inputs), (inputs[:4], inputs[:4]))
    mpidl.train(model, data, epochs=EPOCHS, **keywords)
    pushes, events = int(mpidl.evaluate(shared_path / name, Flat(), data)["step"]), shared_path / name / "events.jsonl"
    moved = -model.parameters[0]
    reductions = [
        each["reductions"] for line in events.read_text().splitlines() if (each := json.loads(line)).get("reductions")
    ]
    assert reductions == [1, 2, 3]
    assert len(set(model.parameters.tolist())) == 1
    if isinstance(algorithm, mpidl.Downpour):
        assert pushes == 16 * EPOCHS
        # 4 epochs at 1, then 3 each at 0.5, 0.25 and 0.125; evaluations and orders take a while.
        assert 16 * 6.1 < moved < 16 * 9
    mpidl.train(model, data, epochs=EPOCHS + 1, resume=True, **keywords)
    assert 16 * FACTOR**4 * 0.05 < -model.parameters[0] - moved <= 16 * FACTOR**3 + 1e-9
