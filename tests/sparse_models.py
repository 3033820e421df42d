"""A small model with a table, and the same with all rows among its parameters."""

import numpy as np

from mpidl.data.dataset import ArraySplit
from mpidl.nn.model import CompleteModel
from mpidl.parameters.layout import Layout
from mpidl.tables.distinct import add_to
from mpidl.tables.lookups import TableSpec, Wanted
from mpidl.tables.sources import FirstRows

DIMENSION, SEED = 3, 5


class Sums(CompleteModel):
    """Outputs are the sums of the rows of each sample's ids, times a vector; the loss is their mean square error."""

    tables = (TableSpec("words", DIMENSION),)
    takes_integers = True

    def __init__(self, ahead=True):
        self._ahead = ahead
        self.parameters = np.linspace(-1, 1, DIMENSION)
        self.layout, self.dtype = Layout([("weights", (DIMENSION,))]), self.parameters.dtype

    def wanted(self, batch):
        return [Wanted(0, batch.inputs.reshape(-1))] if self._ahead else None

    def loss_and_gradient(self, batch):
        found = self.rows.look_up(0, np.ascontiguousarray(batch.inputs).reshape(-1))
        loss, of_rows, gradient = self.computed(batch, found.rows[found.places], self.parameters)
        found.add(of_rows)
        return loss, gradient

    @staticmethod
    def computed(batch, rows, weights):
        """Return the loss, and the gradients with respect to the rows of all ids, and to the weights."""
        summed = rows.reshape(*batch.inputs.shape, DIMENSION).sum(axis=1)
        error = summed @ weights - batch.targets[:, 0]
        scaled = error / len(error)
        of_rows = np.repeat(scaled[:, None] * weights, batch.inputs.shape[1], axis=0)
        return float(np.mean(error**2) / 2), of_rows, summed.T @ scaled


class Dense(CompleteModel):
    """The same with the rows of all `ids` among its parameters, which begin with them."""

    takes_integers = True

    def __init__(self, ids):
        self.ids = ids
        rows = first_values(ids)
        self.parameters = np.concatenate([rows.reshape(-1), Sums().parameters])
        self.layout, self.dtype = Layout([("all", (self.parameters.size,))]), self.parameters.dtype

    def rows(self, parameters):
        """Return the rows of the ids in a vector of parameters, and the weights."""
        return parameters[:-DIMENSION].reshape(-1, DIMENSION), parameters[-DIMENSION:]

    def loss_and_gradient(self, batch):
        places = np.searchsorted(self.ids, batch.inputs.reshape(-1)).astype(np.int32)
        rows, weights = self.rows(self.parameters)
        loss, of_rows, of_weights = Sums.computed(batch, rows[places], weights)
        gradient = np.zeros_like(self.parameters)
        add_to(self.rows(gradient)[0], places, of_rows)
        gradient[-DIMENSION:] = of_weights
        return loss, gradient


def first_values(ids):
    """Return the first values of the rows of ids in float64."""
    found = FirstRows(Sums.tables, SEED, np.float64).look_up(0, np.asarray(ids, np.int64))
    return found.rows[found.places]


def samples(ids, count=61, fields=4, seed=1):
    """Return samples of some ids each, of which a known model has made the targets."""
    random = np.random.default_rng(seed)
    inputs = random.choice(ids, (count, fields))
    inputs[::5, 1] = inputs[::5, 0]  # an id twice in a sample
    targets = np.sin(np.searchsorted(ids, inputs)).sum(axis=1, keepdims=True)
    return ArraySplit(inputs, targets).as_integers().as_double()
