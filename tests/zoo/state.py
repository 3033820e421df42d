"""Modules that change themselves: teachers, buffers, and state in no tensor."""

import random
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

from zoo.cases import CLASSES, zoo


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
