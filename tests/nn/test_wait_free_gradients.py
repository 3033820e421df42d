"""What a network says is final of its gradient, while it computes it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data.batch import Batch
from mpidl.nn import Activation, Add, BatchNormalisation, Dense, Network
from mpidl.nn.losses import Regularisation
from mpidl.nn.model import GivenUp


def network(units, **options):
    """Return a network with a branch, a layer without parameters, and statistics."""
    layers = [
        Dense(units[0], name="first"), BatchNormalisation(), Activation("tanh", name="bent"),
        *(Dense(each, activation="relu") for each in units[1:]), Dense(units[0], name="as-wide"),
        Add(inputs=("as-wide", "bent")), Dense(3),
    ]  # fmt: skip
    return Network(layers, (5,), dtype="float64", **options)


def batch(seed=0, samples=7):
    random = np.random.default_rng(seed)
    return Batch(random.normal(size=(samples, 5)), random.integers(0, 3, samples), seed)


def said(model, batch):
    """Return loss and gradient, and what was said to be final, as copies of the gradient from there on."""
    found = []
    model.report_final(lambda vector, start: found.append((start, vector[start:].copy())))
    loss, gradient = model.loss_and_gradient(batch)
    model.report_final(None)
    return loss, gradient, found


@given(units=st.lists(st.integers(1, 9), min_size=1, max_size=5), l2=st.sampled_from([0.0, 0.01]))
def test_what_is_final_is_the_gradient_from_there_on(units, l2):
    model, plain = (network(units, regularisation=Regularisation(l2)) for _ in range(2))
    for seed in range(3):
        expected_loss, expected = plain.loss_and_gradient(batch(seed))
        loss, gradient, found = said(model, batch(seed))
        assert loss == expected_loss
        assert gradient.tobytes() == expected.tobytes()
        starts = [start for start, _ in found]
        assert starts == sorted(starts, reverse=True)
        assert starts[-1] == 0
        # Each layer with tensors is said as soon as it is done.
        layers = {name.rpartition("/")[0]: None for name in model.layout.shapes}
        firsts = [next(part.start for part in model.layout if part.name.startswith(f"{name}/")) for name in layers]
        assert set(firsts) <= set(starts)
        for start, final in found:
            assert final.tobytes() == gradient[start:].tobytes()


def test_a_norm_that_is_clipped_needs_the_whole_gradient():
    assert said(network([4], regularisation=Regularisation(clip=1e-3)), batch())[2] == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nothing_leaves_of_a_loss_that_is_not_finite(value):
    wrong = batch()
    wrong.inputs[0, 0] = value
    with np.errstate(all="ignore"):
        loss, _, found = said(network([4]), wrong)
    assert not np.isfinite(loss)
    assert found == []


def test_a_class_with_a_gradient_of_its_own_says_nothing_unless_it_says_how():
    class Noisy(Network):
        def loss_and_gradient(self, batch):
            loss, gradient = super().loss_and_gradient(batch)
            return loss, gradient + 1

    model = Noisy([Dense(3)], (5,))
    _, gradient, found = said(model, batch())
    assert found == []
    assert np.array_equal(gradient, model.loss_and_gradient(batch())[1])


def test_a_network_that_reports_no_longer_is_silent():
    model = network([4])
    assert said(model, batch())[2]
    model.loss_and_gradient(batch())
    found = said(model, batch())[2]
    assert [start for start, _ in found][-1] == 0


def test_a_gradient_that_was_given_up_leaves_nothing_behind():
    model, plain = (network([6, 4]) for _ in range(2))
    looks = []

    def give_up(gradient, start):
        looks.append(start)
        if len(looks) == 3:
            raise GivenUp("late")

    model.report_final(give_up)
    with pytest.raises(GivenUp):
        model.loss_and_gradient(batch(1))
    assert len(looks) == 3
    model.report_final(None)
    for seed in range(3):
        assert model.loss_and_gradient(batch(seed))[1].tobytes() == plain.loss_and_gradient(batch(seed))[1].tobytes()
