"""A model with all that one can have beside its vector: a frozen tensor, a counter, and a tensor with two names."""

import numpy as np

from mpidl.nn.model import CompleteModel
from mpidl.parameters import Layout


class Beside(CompleteModel):
    """Least squares with a frozen scale and a counter of batches, on which gradients depend."""

    own = True

    def __init__(self, scale=(1.5, -0.5), layout=(("w", (2,)), ("b", ())), **members):
        self.layout = Layout(list(layout))
        self.dtype = np.dtype(np.float64)
        self.parameters = np.linspace(0.1, 1.0, self.layout.size)
        self.scale, self.seen = np.array(scale), np.array(0)
        self.aliases = {"tied": "w"}
        for name, value in members.items():
            setattr(self, name, value)

    def constants(self):
        return {"block/scale": self.scale}

    def load_constants(self, constants):
        self.scale = constants["block/scale"].copy()

    def buffers(self):
        return {"block/seen": self.seen}

    def load_buffers(self, buffers):
        self.seen[...] = buffers["block/seen"]

    def _error(self, batch):
        w, b = self.parameters[:2] * self.scale, self.parameters[2]
        return self._inputs(batch) @ w + b - batch.targets

    def _inputs(self, batch):
        return batch.inputs.reshape(len(batch.inputs), -1)[:, -2:].astype(float)

    def loss_and_gradient(self, batch):
        self.seen += 1
        error = self._error(batch) / (1 + self.seen)
        of_w = self._inputs(batch).T @ error * self.scale
        return float(np.mean(error**2)), np.append(of_w, error.sum()) / len(error)

    def evaluate(self, batch):
        return float(np.sum(self._error(batch) ** 2)), float("nan")


def make(dataset, seed):
    """Return the model; a factory of jobs."""
    return Beside()
