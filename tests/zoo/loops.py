"""Training with and without the package, and what differs."""

import torch

import mpidl
from mpidl.data import Portions
from mpidl.data.batch import seed_of_batch
from zoo.cases import SAMPLES, SEED, ZOO

BATCH, STEPS, RATE = 4, 4, 0.05
#: Optimisers of PyTorch that train a module on.
OPTIMISERS = (torch.optim.Adam, torch.optim.LBFGS)


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
    return found


def different(found, expected):
    """Return a line for each tensor that differs from what is expected, also in how it lies in memory."""
    lines = [f"{name}: only one has it" for name in found.keys() ^ expected.keys()]
    for name in found.keys() & expected.keys():
        one, other = found[name].double(), expected[name].double()
        if not torch.allclose(one, other, rtol=1e-9, atol=1e-9):
            lines.append(f"{name} differs by {(one - other).abs().max():.2g}")
        if found[name].stride() != expected[name].stride():
            lines.append(f"{name} has strides {found[name].stride()}, not {expected[name].stride()}")
    return sorted(lines)


def differences(name, directory, **options):
    """Return how a module that this package trained differs from that of a plain loop, then and when trained on."""
    case = ZOO[name]
    (module, loss), (plain, its_loss) = case.made(), case.made()
    options = {"batch": BATCH, "portion": BATCH, "steps": STEPS, "seed": SEED, "device": "cpu"} | options
    mpidl.train(module, case.data(), loss=loss, rule=mpidl.Sgd(RATE), dir=directory, name=name, **options)
    plain_loop(case, plain, its_loss, torch.optim.SGD(parameters(plain, its_loss), RATE), STEPS)
    lines = different(tensors(module, loss), tensors(plain, its_loss))
    for kind in () if lines else OPTIMISERS:
        before = {key: value.clone() for key, value in tensors(plain, its_loss).items()}
        for each, of_each in ((module, loss), (plain, its_loss)):
            plain_loop(case, each, of_each, kind(parameters(each, of_each), lr=0.01), 3)
        assert different(before, tensors(plain, its_loss)), "the plain module must move"
        lines += [f"{kind.__name__}: {line}" for line in different(tensors(module, loss), tensors(plain, its_loss))]
    return lines
