"""Modules that differentiate in ways of their own."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zoo.cases import CLASSES, zoo


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values.round()

    @staticmethod
    def backward(ctx, gradient):
        (values,) = ctx.saved_tensors
        return gradient * (values.abs() < 2)


@zoo("vector")
class OwnFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, inputs):
        return self.last(Rounding.apply(3 * self.first(inputs)))


@zoo("vector")
class DoubleBackward(nn.Module):
    """The outputs contain a gradient with respect to the inputs, as those of force fields do."""

    def __init__(self):
        super().__init__()
        self.energy, self.last = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), nn.Linear(6, CLASSES)

    def forward(self, inputs):
        with torch.enable_grad():
            inputs = inputs.detach().requires_grad_()
            (force,) = torch.autograd.grad(self.energy(inputs).sum(), inputs, create_graph=self.training)
        return self.last(force)


@zoo("vector")
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2)) for _ in range(2)])
        self.last = nn.Linear(6, CLASSES)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = checkpoint(block, inputs, use_reentrant=False)
        return self.last(inputs)


@zoo("vector")
class CheckpointedReentrantly(Checkpointed):
    def forward(self, inputs):
        inputs = inputs.detach().requires_grad_(self.training)
        for block in self.blocks:
            inputs = checkpoint(block, inputs, use_reentrant=True)
        return self.last(inputs)


@zoo("vector")
class Hooked(nn.Module):
    """Hooks of every kind that users register."""

    @staticmethod
    def halve(parameter):
        parameter.grad *= 0.5

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.first.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
        self.first.register_forward_hook(lambda module, given, result: result.tanh())
        self.last.register_full_backward_hook(lambda module, before, after: (before[0] * 0.5,))
        self.first.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        self.first.bias.register_post_accumulate_grad_hook(self.halve)

    def forward(self, inputs):
        return self.last(self.first(inputs))
