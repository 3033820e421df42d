"""Modules with parameters in odd places, which change themselves, or which differentiate in ways of their own."""

import random
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from zoo.cases import CLASSES, zoo

# Where parameters are.


@zoo("vector")
class Dictionary(nn.Module):
    """Parameters whose names HDF5 would take for one group, or for the end of a name."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterDict({"O": torch.randn(6, CLASSES), "O/H": torch.randn(6, 6), "O\0": torch.zeros(3)})
        self.biases = nn.ParameterList([torch.zeros(6), torch.zeros(CLASSES)])

    def forward(self, inputs):
        hidden = (inputs @ self.weights["O/H"] + self.biases[0]).tanh()
        return hidden @ self.weights["O"] + self.biases[1] * self.weights["O\0"].exp()


@zoo("vector")
class Modules(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.ModuleDict({"even": nn.Linear(6, 6), "odd": nn.Linear(6, 6)})
        self.layers = nn.ModuleList([nn.Linear(6, CLASSES), nn.Identity()])

    def forward(self, inputs):
        for number, kind in enumerate(("even", "odd", "even")):
            inputs = torch.relu(self.kinds[kind](inputs)) + number
        return self.layers[0](self.layers[1](inputs))


@zoo("vector")
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.there, self.back, self.last = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, CLASSES)
        self.back.weight = self.there.weight

    def forward(self, inputs):
        return self.last(functional.linear(torch.relu(self.there(inputs)), self.back.weight.t()))


@zoo("vector")
class Repeated(nn.Module):
    """One layer registered under two names and used thrice."""

    def __init__(self):
        super().__init__()
        self.layer = self.alias = nn.Linear(6, 6)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, inputs):
        return self.last(self.alias(self.layer(self.layer(inputs).tanh()).tanh()))


@zoo("vector")
class Scalar(nn.Module):
    """Parameters of no axis, of no element, and not contiguous."""

    def __init__(self):
        super().__init__()
        self.scale, self.none = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0, 3))
        self.weight = nn.Parameter(torch.randn(6, CLASSES).t())

    def forward(self, inputs):
        return self.scale.exp() * functional.linear(inputs, self.weight) + self.none.sum()


@zoo("vector")
class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)

    def forward(self, inputs):
        return self.used(inputs)


@zoo("vector")
class References(nn.Module):
    """Parameters that are also in plain lists, and a layer that isn't registered."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)
        self.listed = [self.layer.weight, self.layer.bias]
        self.hidden = [nn.Linear(CLASSES, CLASSES).double()]

    def forward(self, inputs):
        return self.hidden[0](functional.linear(inputs, *self.listed))


@zoo("vector")
class Experts(nn.Module):
    """The gate chooses one expert for each sample; some experts get no gradient."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 5)
        self.experts = nn.ModuleList([nn.Linear(6, CLASSES) for _ in range(5)])

    def forward(self, inputs):
        scores = self.gate(inputs).softmax(-1)
        chosen, results = scores.argmax(-1), inputs.new_zeros(len(inputs), CLASSES)
        for number, expert in enumerate(self.experts):
            if (own := (chosen == number).nonzero()[:, 0]).numel():
                results = results.index_add(0, own, expert(inputs[own]) * scores[own, number, None])
        return results


@zoo("vector")
class Functional(nn.Module):
    """A network whose weights another one computes."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, CLASSES).requires_grad_(False), nn.Linear(2, 6 * CLASSES)
        self.code = nn.Parameter(torch.randn(2))

    def forward(self, inputs):
        weight = self.outer(self.code).view(CLASSES, 6)
        return torch.func.functional_call(self.inner, {"weight": weight}, (inputs,))


@zoo("vector")
class LowRank(nn.Module):
    """A frozen layer with a trained product of two thin matrices beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, CLASSES).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(CLASSES, 2))

    def forward(self, inputs):
        return self.base(inputs) + inputs @ self.down.t() @ self.up.t()


# What modules change themselves.


@zoo("vector")
class Teacher(nn.Module):
    """The average of a student over time; the outputs are between both."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES).requires_grad_(False)

    def forward(self, inputs):
        if self.training:
            with torch.no_grad():
                for own, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    own.mul_(0.9).add_(new, alpha=0.1)
        return self.student(inputs) + 0.5 * self.teacher(inputs)


@zoo("vector")
class Averaged(nn.Module):
    """The mean of a student, as `torch.optim.swa_utils` has it, whose buffer counts the updates."""

    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(6, CLASSES), nn.BatchNorm1d(CLASSES))
        self.mean = AveragedModel(self.student, use_buffers=True).requires_grad_(False)

    def forward(self, inputs):
        found = self.student(inputs)
        if self.training:
            self.mean.update_parameters(self.student)
        return found + self.mean.eval()(inputs)


@zoo("vector")
class Assigned(nn.Module):
    """A buffer that forward assigns anew, and one that no checkpoint has."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self.register_buffer("hidden", torch.zeros(6), persistent=False)

    def forward(self, inputs):
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * inputs.detach().abs().mean()
            self.passes = self.passes + 1
            self.hidden = 0.5 * self.hidden + inputs.detach().mean(0)
        return self.layer(inputs + self.hidden) / self.scale


@zoo("vector")
class Frozen(nn.Module):
    """A frozen part that stays in evaluation mode, whatever mode the whole gets."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).requires_grad_(False)
        self.last = nn.Linear(8, CLASSES)

    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, inputs):
        return self.last(self.body(inputs))


@zoo("vector")
class Sparse(nn.Module):
    """Products with sparse matrices, one of which decays."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, CLASSES)
        edges = (torch.rand(6, 6) > 0.6) * torch.randn(6, 6)
        self.register_buffer("fixed", edges.to_sparse_csr())
        self.register_buffer("decaying", edges.t().to_sparse())

    def forward(self, inputs):
        if self.training:
            self.decaying = self.decaying * 0.9
        return self.last((self.fixed @ (self.decaying @ inputs.t())).t())


@zoo("vector")
class Quantised(nn.Module):
    """Vectors of a codebook that moves towards what is mapped to it (exponential moving averages)."""

    def __init__(self):
        super().__init__()
        self.encoder, self.last = nn.Linear(6, 2), nn.Linear(2, CLASSES)
        self.register_buffer("codes", torch.randn(4, 2))
        self.register_buffer("counts", torch.ones(4))

    def forward(self, inputs):
        values = self.encoder(inputs)
        nearest = torch.cdist(values, self.codes).argmin(1)
        found = self.codes[nearest]
        if self.training:
            with torch.no_grad():
                chosen = functional.one_hot(nearest, 4).to(values)
                self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
                self.codes.mul_(0.9).add_(chosen.t() @ values / (1 + self.counts[:, None]), alpha=0.1)
        return self.last(values + (found - values).detach())


@zoo("vector")
class Buffers(nn.Module):
    """Buffers of all dtypes, and places without a tensor."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, CLASSES, bias=False)
        self.register_buffer("mask", torch.tensor([True, False, True, True, False, True]))
        self.register_buffer("phase", torch.randn(6, dtype=torch.complex64))
        self.register_buffer("small", torch.ones(6))
        self.register_buffer("nothing", None)
        self.register_parameter("absent", None)

    def double(self):
        """Convert what a plain model would have in double precision."""
        self.layer.double()
        self.small = self.small.bfloat16()
        return self

    def forward(self, inputs):
        if self.training:
            self.small *= 0.5
        return self.layer((inputs * self.phase).abs() * self.mask + self.small)


@zoo("vector")
class Quantising(nn.Module):
    """Training that is aware of quantisation: its buffers get their shapes in the first pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)
        self.rounded = FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

    def double(self):
        self.layer.double()
        return self

    def forward(self, inputs):
        values = inputs.float()
        if self.training:
            return self.layer(self.rounded(values).to(inputs))
        scale, zero = self.rounded.scale, self.rounded.zero_point
        return self.layer(torch.fake_quantize_per_tensor_affine(values, scale, zero, 0, 255).to(inputs))


@zoo("vector", local=True)
class Remembering(nn.Module):
    """State that is in no tensor of the module: a number, containers, a tensor that isn't a buffer."""

    def __init__(self):
        super().__init__()
        self.layer, self.hidden = nn.Linear(6, CLASSES), None
        self.passes, self.means, self.last, self.seen = 0, [], deque(maxlen=2), set()

    def forward(self, inputs):
        if self.training:
            mean = inputs.detach().mean()
            self.passes += 1
            self.means.append(mean)
            self.last.append(mean)
            self.seen.add(mean.item())
            self.hidden = mean if self.hidden is None else 0.5 * self.hidden + 0.5 * mean
        known = sum(self.last, len(self.seen) + (0 if self.hidden is None else self.hidden))
        return self.layer(inputs + known) * (1 + self.passes / 10 + len(self.means))


@zoo("vector", local=True)
class Generators(nn.Module):
    """Noise of generators that are the module's own."""

    def __init__(self):
        super().__init__()
        self.layer, self.generator = nn.Linear(6, CLASSES), torch.Generator().manual_seed(1)
        self.others = nn.ModuleDict({"noise": Noise()})

    def forward(self, inputs):
        if self.training:
            inputs = inputs + torch.randn(inputs.shape, generator=self.generator, dtype=inputs.dtype)
        return self.layer(self.others["noise"](inputs))


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.numpy, self.legacy, self.python = np.random.default_rng(1), np.random.RandomState(1), random.Random(1)

    def forward(self, inputs):
        if self.training:
            return inputs * self.numpy.normal() + self.legacy.normal() * self.python.random()
        return inputs


@zoo("vector")
class GlobalNoise(nn.Module):
    """Noise of the generators of NumPy and Python that a whole program shares."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, inputs):
        if self.training:
            inputs = inputs * (1 + np.random.random() + random.random())  # noqa: NPY002
        return self.layer(inputs)


@zoo("vector")
def wrapped():
    return nn.DataParallel(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, CLASSES))))


# Gradients.


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


# Losses with parameters.


class Centres(nn.Module):
    """Cross-entropy and the distance to the centre of each class (Wen et al. 2016)."""

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(CLASSES, CLASSES))

    def forward(self, outputs, targets):
        distance = (outputs - self.centres[targets]).square().sum(1).mean()
        return functional.cross_entropy(outputs, targets) + 0.1 * distance


@zoo("vector", Centres)
def clustered():
    return nn.Linear(6, CLASSES)


@zoo("vector", functional.nll_loss)
def log_probabilities():
    return nn.Sequential(nn.Linear(6, CLASSES), nn.LogSoftmax(1))


class Weighted(nn.Module):
    """Two losses weighed by learned uncertainties (Kendall et al. 2018)."""

    def __init__(self):
        super().__init__()
        self.uncertainty = nn.Parameter(torch.zeros(2))

    def forward(self, outputs, targets):
        losses = torch.stack([functional.cross_entropy(outputs, targets), outputs.square().mean()])
        return (losses * (-self.uncertainty).exp() + self.uncertainty).sum()


@zoo("vector", Weighted)
def weighed():
    return nn.Sequential(nn.Linear(6, CLASSES), nn.Tanh())
