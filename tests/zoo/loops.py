"""Training with and without the package, and what differs."""

import random

import numpy as np
import torch

import mpidl
from mpidl.data import Portions
from mpidl.data.batch import seed_of_batch
from zoo.cases import SAMPLES, SEED, ZOO

BATCH, STEPS, RATE = 4, 4, 0.05


def optimisers(parameters):
    """Yield what trains a module on: Adam, and LBFGS, which needs contiguous parameters."""
    yield torch.optim.Adam(parameters, lr=0.01)
    if all(each.is_contiguous() for each in parameters):
        yield torch.optim.LBFGS(parameters, lr=0.01, max_iter=2)


def batches(case, steps):
    """Yield number, inputs and targets of the batches of a run on one worker, whose portions are batches."""
    inputs, targets = case.samples()
    portions, number = Portions(SAMPLES, BATCH, BATCH, SEED), 0
    while True:
        for indices in portions.batches(number):
            if number == steps:
                return
            yield number, torch.from_numpy(inputs[indices]), torch.from_numpy(targets[indices])
        number += 1


def parameters(module, loss):
    return [*module.parameters(), *(loss.parameters() if isinstance(loss, torch.nn.Module) else ())]


def plain_loop(case, module, loss, optimiser, steps):
    """Train a module by an optimiser of PyTorch as one does without this package."""
    module.train()
    seed_globals()
    for number, inputs, targets in batches(case, steps):

        def closure(number=number, inputs=inputs, targets=targets):
            torch.manual_seed(seed_of_batch(SEED, number))
            optimiser.zero_grad()
            value = loss(module(inputs), targets)
            value.backward()
            return value

        optimiser.step(closure)


def tensors(module, loss):
    """Return all tensors of a module and its loss by their names, whether or not a state_dict has them."""
    found = dict(module.state_dict())
    for prefix, each in (("", module), ("loss.", loss)):
        if isinstance(each, torch.nn.Module):
            found |= {prefix + name: value for name, value in (*each.named_parameters(), *each.named_buffers())}
    return {name: each if each.layout is torch.strided else each.to_dense() for name, each in found.items()}


def different(found, expected, tolerance=1e-9):
    """Return a line for each tensor that differs from what is expected, also in how it lies in memory."""
    lines = [f"{name}: only one has it" for name in found.keys() ^ expected.keys()]
    for name in found.keys() & expected.keys():
        one, other = found[name].double(), expected[name].double()
        if not torch.allclose(one, other, rtol=tolerance, atol=tolerance):
            lines.append(f"{name} differs by {(one - other).abs().max():.2g}")
        if found[name].stride() != expected[name].stride():
            lines.append(f"{name} has strides {found[name].stride()}, not {expected[name].stride()}")
    return sorted(lines)


def seed_globals():
    """Seed the generators of Python and NumPy, which modules may use."""
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002


def differences(name, directory, **options):
    """Return how a module that this package trained differs from that of a plain loop, then and when trained on."""
    case = ZOO[name]
    (module, loss), (plain, its_loss) = case.made(), case.made()
    options = {"batch": BATCH, "portion": BATCH, "steps": STEPS, "seed": SEED, "device": "cpu"} | options
    seed_globals()
    mpidl.train(module, case.data(), loss=loss, rule=mpidl.Sgd(RATE), dir=directory, name=name, **options)
    plain_loop(case, plain, its_loss, torch.optim.SGD(parameters(plain, its_loss), RATE), STEPS)
    lines = different(tensors(module, loss), tensors(plain, its_loss))
    if not lines:
        for own, its in zip(optimisers(parameters(module, loss)), optimisers(parameters(plain, its_loss)), strict=True):
            before = {key: value.clone() for key, value in tensors(plain, its_loss).items()}
            plain_loop(case, module, loss, own, 3)
            plain_loop(case, plain, its_loss, its, 3)
            assert different(before, tensors(plain, its_loss)), "the plain module must move"
            # LBFGS multiplies differences of rounding.
            found = different(tensors(module, loss), tensors(plain, its_loss), 1e-6)
            lines += [f"{type(own).__name__}: {line}" for line in found]
    return lines
