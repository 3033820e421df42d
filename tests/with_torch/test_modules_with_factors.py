"""The factors of a module's gradient."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from mpidl.data.batch import Batch  # noqa: E402
from mpidl.nn.adaptation import ModelError  # noqa: E402
from mpidl.torch import TorchModel  # noqa: E402
from torch_modules import cnn, mlp, transformer  # noqa: E402


def batch(number=0, samples=6):
    random = np.random.default_rng(number)
    images = random.normal(size=(samples, 64))
    return Batch(images, random.integers(0, 10, samples), number)


def model_of(module, rehearsed=True, **options):
    model = TorchModel(module.double(), "cross_entropy", seed=3, **options)
    if rehearsed:
        model.matrices(batch())
    return model


def names(model):
    """Return the names of the weights that have factors."""
    starts = {part.start: part.name for part in model.layout}
    return [starts[each.start] for each in model.matrices()]


def rebuilt(model, batch, only):
    """Return the gradient that a server makes of what it is given, and whether some of that was factors."""
    sizes = {each.start: each for each in model.matrices()}
    found, calls, whole = np.full(model.layout.size, np.nan), [model.layout.size], []

    def take(gradient, start, factors=None):
        stop = calls[-1]
        assert start < stop
        calls.append(start)
        found[start:stop] = gradient[start:stop]
        whole.append(factors is None)
        if factors is None:
            return
        assert factors.samples == len(batch.inputs)
        assert not sizes.keys() & set(range(start + 1, stop))
        if start in sizes:
            product = (factors.inputs.T @ factors.output_gradient).reshape(-1)
            own = found[slice(*sizes[start].range)]
            if start in only:
                own[:] = product
            np.testing.assert_allclose(own, product, rtol=1e-9, atol=1e-12)

    model._vector.gradient.fill(np.nan)
    _, gradient = model.wait_free_gradient(batch, take, only)
    if not whole or all(whole):
        return gradient, False
    assert not any(whole)
    assert calls[-1] == 0
    return found, True


class Linears(torch.nn.Module):
    """Linear layers of these widths, some without bias, the first of which may be the first of all."""

    def __init__(self, widths):
        super().__init__()
        torch.manual_seed(1)
        sizes = [64, *widths, 10]
        pairs = itertools.pairwise(sizes)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair, bias=n % 2 == 1) for n, pair in enumerate(pairs))

    def forward(self, values):
        for layer in self.layers[:-1]:
            values = torch.tanh(layer(values))
        return self.layers[-1](values)


@settings(max_examples=20, deadline=None)
@given(widths=st.lists(st.integers(1, 9), max_size=3), samples=st.integers(1, 9), data=st.data())
def test_their_product_is_the_gradient_of_the_weight(widths, samples, data):
    model, plain = (model_of(Linears(widths)) for _ in range(2))
    starts = [each.start for each in model.matrices()]
    assert len(starts) == len(widths) + 1
    only = data.draw(st.sets(st.sampled_from(starts)))
    for number in range(3):
        _, expected = plain.loss_and_gradient(batch(number, samples))
        found, in_factors = rebuilt(model, batch(number, samples), only)
        # The first pass is watched.
        assert in_factors == (number > 0)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert np.array_equal(model.loss_and_gradient(batch())[1], plain.loss_and_gradient(batch())[1])
    assert "forward" not in vars(model.module.layers[0])


class Reused(torch.nn.Module):
    """One layer used twice, one on rows, one by its weight alone, one whose weight is decayed, and one as usual."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.rows, self.twice = torch.nn.Linear(8, 8), torch.nn.Linear(64, 64)
        self.by_weight, self.decayed, self.usual = (torch.nn.Linear(64, 64) for _ in range(3))
        self.tied, self.also = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.also.weight = self.tied.weight
        self.sparsely, self.last = torch.nn.Linear(64, 7), torch.nn.Linear(64, 10)

    def forward(self, images):
        values = self.twice(torch.tanh(self.twice(self.rows(images.reshape(-1, 8, 8)).flatten(1))))
        values = torch.tanh(torch.nn.functional.linear(values, self.by_weight.weight))
        values = self.usual(self.also(self.tied(values))) + self.decayed.weight.square().sum() * self.decayed(values)
        self.sparsely(values)
        return self.last(values)


def test_layers_that_are_used_otherwise_have_none():
    model = model_of(Reused())
    assert names(model) == ["usual.weight", "last.weight"]
    assert names(model_of(mlp())) == ["1.weight", "4.weight"]
    assert names(model_of(cnn())) == ["last.weight"]
    assert names(model_of(transformer())) == ["last.weight"]
    expected = model_of(Reused())
    for number in range(3):
        found, _ = rebuilt(model, batch(number), {each.start for each in model.matrices()})
        np.testing.assert_allclose(found, expected.loss_and_gradient(batch(number))[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{"micro_batches": 2}, {"autocast": "bfloat16"}])
def test_pieces_of_batches_and_other_precisions_have_none(options):
    assert model_of(mlp(), rehearsed=False, **options).matrices() == []


class Physical(torch.nn.Module):
    """Its outputs are derivatives, so that a gradient is a second one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last, self.beside = torch.nn.Linear(64, 64), torch.nn.Linear(64, 10), torch.nn.Linear(64, 10)

    def forward(self, images):
        images = images.detach().requires_grad_()
        values = self.last(torch.tanh(self.first(images)))
        (slopes,) = torch.autograd.grad(values.sum(), images, create_graph=True)
        return values + self.beside(slopes)


def test_second_derivatives_have_none():
    model, plain = model_of(Physical()), model_of(Physical(), rehearsed=False)
    assert names(model) == ["beside.weight"]
    starts = {each.start for each in model.matrices()}
    for number in range(3):
        _, expected = plain.loss_and_gradient(batch(number))
        found, in_factors = rebuilt(model, batch(number), starts)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert in_factors == (number > 0)


class Changing(torch.nn.Module):
    """A layer that some batches use otherwise than the first ones, or not at all."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last, self.calls, self.how = torch.nn.Linear(64, 64), torch.nn.Linear(64, 10), 0, how

    def forward(self, images):
        self.calls += 1
        odd = self.how if self.calls % 3 == 0 else ""
        if odd == "twice":
            images = torch.tanh(self.first(images))
        elif odd == "unused":
            return self.last(images)
        elif odd == "rows":
            return self.last(self.first(images[:, None])[:, 0])
        elif odd == "checkpoint":
            return self.last(checkpoint(self.first, images, use_reentrant=False))
        elif odd == "dropped":
            return self.last(images) + 0 * self.first(images).detach().sum()
        return self.last(torch.tanh(self.first(images)))


@pytest.mark.parametrize("how", ["twice", "unused", "rows", "checkpoint", "dropped"])
def test_batches_that_use_a_layer_otherwise_are_whole(how):
    model, plain = model_of(Changing(how)), model_of(Changing(how))
    starts = {each.start for each in model.matrices()}
    assert len(starts) == 2
    for number in range(8):
        found, in_factors = rebuilt(model, batch(number), starts)
        _, expected = plain.loss_and_gradient(batch(number))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        odd = model.module.calls % 3 == 0 and how not in ("checkpoint", "dropped")
        assert in_factors == (number > 0 and not odd)


class Decayed(Changing):
    def forward(self, images):
        outputs = super().forward(images)
        return outputs + self.first.weight.square().sum() if self.calls % 3 == 0 else outputs


def test_a_weight_that_gets_another_gradient_now_and_then_is_an_error():
    model = model_of(Decayed(""))
    starts = {each.start for each in model.matrices()}
    rebuilt(model, batch(), starts)
    assert model.module.calls == 2
    with pytest.raises(ModelError, match=r"the gradient of first.weight changed after it had been complete"):
        rebuilt(model, batch(1), starts)


def test_a_loss_that_is_not_finite_leaves_a_whole_gradient():
    model = model_of(mlp())
    starts = {each.start for each in model.matrices()}
    rebuilt(model, batch(), starts)
    found, in_factors = rebuilt(model, batch()._replace(inputs=np.full((6, 64), np.inf)), starts)
    assert not in_factors
    assert np.isnan(found).any()
