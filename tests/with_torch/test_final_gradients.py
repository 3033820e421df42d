"""What a module's gradient is final of, while PyTorch computes it."""

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from mpidl.data.batch import Batch
from mpidl.nn.adaptation import ModelError
from mpidl.nn.model import GivenUp
from mpidl.torch import TorchModel
from torch_modules import cnn, mlp, noisy, transformer


def batch(number=0, samples=6):
    random = np.random.default_rng(number)
    images = random.normal(size=(samples, 64)).astype(np.float32)
    return Batch(images, random.integers(0, 10, samples), number)


def said(model, batch):
    """Return the gradient and what was said to be final, as copies of the gradient from there on."""
    found = []
    model.report_final(lambda vector, start: found.append((start, vector[start:].copy())))
    _, gradient = model.loss_and_gradient(batch)
    model.report_final(None)
    return gradient, found


class Odd(torch.nn.Module):
    """Tied weights, a parameter that no output depends on, and layers used in another order than they are made."""

    def __init__(self, unused):
        super().__init__()
        self.tied = torch.nn.Linear(64, 64)
        self.middle = torch.nn.Linear(64, 10)
        if unused == "middle":
            self.unused = torch.nn.Linear(3, 1)
        self.again = torch.nn.Linear(64, 64, bias=False)
        self.again.weight = self.tied.weight
        self.last = torch.nn.Linear(10, 10)
        if unused == "end":
            self.unused = torch.nn.Linear(3, 1)

    def forward(self, images):
        return self.last(self.middle(torch.tanh(self.again(torch.tanh(self.tied(images))))))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        *((each, True) for each in (mlp, cnn, noisy, transformer)),
        *((lambda unused=unused: _seeded(Odd(unused)), unused != "end") for unused in ("", "middle", "end")),
    ],
)
def test_what_is_final_is_the_gradient_from_there_on(make, says):
    model, plain = (TorchModel(make(), "cross_entropy", seed=3) for _ in range(2))
    for number in range(4):
        _, expected = plain.loss_and_gradient(batch(number))
        gradient, found = said(model, batch(number))
        assert gradient.tobytes() == expected.tobytes()
        starts = [start for start, _ in found]
        assert starts == sorted(set(starts), reverse=True)
        for start, final in found:
            assert final.tobytes() == gradient[start:].tobytes()
        # The first pass is watched; what no output depends on is known at the end.
        assert bool(found) == ((number > 0 and getattr(model.module, "unused", None) is None) or len(found) > 0)
        model.parameters -= 0.1 * gradient
        plain.parameters -= 0.1 * expected


@pytest.mark.parametrize(("unused", "first"), [("", "last.bias"), ("middle", "last.bias"), ("end", None)])
def test_the_longest_final_part_at_the_end_is_said_at_once(unused, first):
    model = TorchModel(_seeded(Odd(unused)), "cross_entropy")
    said(model, batch())
    _, found = said(model, batch(1))
    starts = {part.name: part.start for part in model.layout}
    assert [start for start, _ in found][:1] == ([] if first is None else [starts[first]])
    lowest = {"": "tied.weight", "middle": "last.weight", "end": None}[unused]
    assert lowest is None or min(start for start, _ in found) == starts[lowest]


class Nested(torch.nn.Module):
    """A layer that is used twice within a backward pass of its own, from batch number `since` on."""

    def __init__(self, since=0, norm=False):
        super().__init__()
        self.first = torch.nn.Linear(64, 10)
        self.norm = torch.nn.BatchNorm1d(10) if norm else torch.nn.Identity()
        self.shared = torch.nn.Linear(10, 10)
        self.last = torch.nn.Linear(10, 10)
        self.calls, self.since = 0, since

    def forward(self, images):
        values = self.first(images)
        self.calls += self.training
        if self.calls <= self.since:
            return self.last(self.shared(self.shared(self.norm(values))))
        inner = checkpoint(lambda each: self.shared(self.norm(each)), values, use_reentrant=True)
        return self.last(checkpoint(self.shared, inner, use_reentrant=True))


@pytest.mark.parametrize("norm", [False, True])
def test_what_changes_again_within_a_pass_is_never_final_before_its_end(norm):
    model, plain = (TorchModel(_seeded(Nested(norm=norm)), "cross_entropy") for _ in range(2))
    for number in range(4):
        _, expected = plain.loss_and_gradient(batch(number))
        gradient, found = said(model, batch(number))
        assert gradient.tobytes() == expected.tobytes()
        for start, final in found:
            assert final.tobytes() == gradient[start:].tobytes()
        assert bool(found) == (number > 0 and not norm)


@pytest.mark.parametrize(("norm", "what"), [(False, "the gradient of shared."), (True, "")])
def test_what_changes_after_it_has_left_is_an_error(norm, what):
    model = TorchModel(_seeded(Nested(since=2, norm=norm)), "cross_entropy")
    for number in range(2):
        said(model, batch(number))
    with pytest.raises(ModelError, match=rf"^model: Nested: {what}.* changed after it was complete, .*reentrant"):
        said(model, batch(2))


def test_a_gradient_within_the_forward_pass_is_none_of_the_loss():
    class Forces(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(64, 10), torch.nn.Linear(10, 10)

        def forward(self, images):
            images = images.requires_grad_()
            energy = self.last(torch.tanh(self.first(images)))
            (slope,) = torch.autograd.grad(energy.square().sum(), images, create_graph=True)
            energy.mean().backward(retain_graph=True)
            return energy + slope[:, :10]

    model, plain = (TorchModel(_seeded(Forces()), "cross_entropy") for _ in range(2))
    for number in range(3):
        _, expected = plain.loss_and_gradient(batch(number))
        gradient, found = said(model, batch(number))
        assert gradient.tobytes() == expected.tobytes()
        for start, final in found:
            assert final.tobytes() == gradient[start:].tobytes()
        assert bool(found) == (number > 0)


def test_nothing_leaves_of_a_loss_that_is_not_finite_nor_of_a_batch_in_pieces():
    model, pieces = TorchModel(mlp(), "cross_entropy"), TorchModel(mlp(), "cross_entropy", micro_batches=2)
    for _ in range(2):
        assert said(pieces, batch())[1] == []
        said(model, batch())
    wrong = batch()
    wrong.inputs[0, 0] = np.nan
    assert said(model, wrong)[1] == []


def _seeded(module):
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in module.parameters():
            each.copy_(torch.randn(each.shape, generator=random) / 5)
    return module


@pytest.mark.parametrize("make", [mlp, cnn])
def test_a_gradient_that_was_given_up_leaves_nothing_behind(make):
    model, plain = (TorchModel(make(), "cross_entropy", seed=3) for _ in range(2))

    def give_up(vector, start):
        if start < model.layout.size // 2:
            raise GivenUp("late")

    model.report_final(give_up)
    # PyTorch's first pass reports nothing.
    assert model.loss_and_gradient(batch())[1].tobytes() == plain.loss_and_gradient(batch())[1].tobytes()
    with pytest.raises(GivenUp):
        model.loss_and_gradient(batch(1))
    model.report_final(None)
    for number in range(2):
        expected = plain.loss_and_gradient(batch(number))[1]
        assert model.loss_and_gradient(batch(number))[1].tobytes() == expected.tobytes()
