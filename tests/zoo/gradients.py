"""Modules that differentiate in ways of their own."""

import torch
from torch import nn
from torch.nn import functional
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


@zoo("sequence")
class Spectral(nn.Module):
    """A filter in the frequency domain; its weights are real."""

    def __init__(self):
        super().__init__()
        self.filter, self.last = nn.Parameter(torch.randn(3, 4, 2)), nn.Linear(4, CLASSES)

    def forward(self, inputs):
        found = torch.fft.rfft(inputs, dim=1) * torch.view_as_complex(self.filter)
        return self.last(torch.fft.irfft(found, n=inputs.shape[1], dim=1).mean(1))


@zoo("sequence")
class Graph(nn.Module):
    """Messages along the edges of a graph, whose nodes choose discretely (Gumbel softmax)."""

    def __init__(self):
        super().__init__()
        self.choice, self.last = nn.Linear(4, 3), nn.Linear(3, CLASSES)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]))

    def forward(self, inputs):
        nodes = self.choice(inputs)
        nodes = functional.gumbel_softmax(nodes, hard=True) if self.training else nodes.softmax(-1)
        received = torch.zeros_like(nodes).index_add(1, self.edges[1], nodes[:, self.edges[0]])
        return self.last((nodes + received).amax(1))


@zoo("vector")
class Variational(nn.Module):
    """A code that is sampled anew in each pass."""

    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.last = nn.Linear(6, 2), nn.Linear(6, 2), nn.Linear(2, CLASSES)

    def forward(self, inputs):
        mean, spread = self.mean(inputs), self.spread(inputs)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.last(mean + noise * (spread / 2).exp())


@zoo("vector")
class Waves(nn.Module):
    """Sines of learned frequencies, and a bilinear layer."""

    def __init__(self):
        super().__init__()
        self.waves, self.both = nn.Linear(6, 5), nn.Bilinear(5, 6, CLASSES)
        nn.init.uniform_(self.waves.weight, -1, 1)

    def forward(self, inputs):
        return self.both(torch.sin(3 * self.waves(inputs)), inputs)
