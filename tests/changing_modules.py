"""Modules and losses that change themselves in forward passes, for the embedded digits."""

import copy

import torch

import mpidl
from mpidl.config import from_dict
from mpidl.job.job import Job
from mpidl.torch import TorchModel
from torch_modules import batches, functional, mlp

#: Of `plain`.
RATE, BATCH = 0.05, 32


class Changing(torch.nn.Module):
    """A layer, and what a subclass changes in training."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layer = torch.nn.Linear(64, 10)
        self.prepare()

    def forward(self, images):
        images = images.flatten(1)
        if self.training:
            with torch.no_grad():
                self.change(images)
        return self.use(images)


class Anew(Changing):
    """A statistic that is assigned anew, and a counter."""

    def prepare(self):
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def change(self, images):
        self.scale = 0.9 * self.scale + images.abs().mean()
        self.steps = self.steps + 1

    def use(self, images):
        return self.layer(images) * self.scale / (1 + 0.01 * self.steps)


class AnewBehind(Changing):
    """A statistic that the outputs depend on before it is assigned anew."""

    def prepare(self):
        self.register_buffer("scale", torch.ones(10))

    def change(self, images):
        pass

    def use(self, images):
        outputs = self.layer(images) * self.scale
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * outputs.detach().abs().mean(0)
        return outputs


class Teacher(Changing):
    """A frozen average of the layer, changed in place."""

    def prepare(self):
        self.teacher = copy.deepcopy(self.layer).requires_grad_(False)

    def change(self, images):
        for mine, other in zip(self.teacher.parameters(), self.layer.parameters(), strict=True):
            mine.lerp_(other, 0.1)

    def use(self, images):
        return self.layer(images) + 0.5 * self.teacher(images)


class TeacherByData(Teacher):
    """The same by ``.data``, of which PyTorch takes no notice."""

    def change(self, images):
        for mine, other in zip(self.teacher.parameters(), self.layer.parameters(), strict=True):
            mine.data.mul_(0.9).add_(other.data, alpha=0.1)


class Before(Teacher):
    """A frozen copy of the layer, made anew in every third pass."""

    def prepare(self):
        super().prepare()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def change(self, images):
        if self.steps % 3 == 0:
            self.teacher = copy.deepcopy(self.layer).requires_grad_(False)
        self.steps += 1


class Sums(Changing):
    """Sums in float64, where float32 would lose what is added, and extremes that begin far off."""

    def prepare(self):
        self.register_buffer("total", torch.tensor([1e9, 0.0], dtype=torch.float64))
        self.register_buffer("least", torch.tensor(torch.inf))
        self.register_buffer("largest", torch.tensor(-1e30))

    def change(self, images):
        self.total += images.double().sum() * 1e-3
        self.largest = torch.maximum(self.largest, images.mean())
        self.least = torch.minimum(self.least, (images + 0.5).min())

    def use(self, images):
        return self.layer(images) * ((self.total[0] - 1e9).float() * 1e-2 + self.least.clamp(max=1) + self.largest)


class Private(Changing):
    """Buffers that the ``state_dict`` lacks: one changed in place, one that grows, one that stays."""

    def prepare(self):
        self.register_buffer("moving", torch.zeros(10), persistent=False)
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.register_buffer("same", torch.rand(10), persistent=False)

    def change(self, images):
        self.moving += self.layer(images).mean(0)
        self.seen = torch.cat([self.seen, images.mean().reshape(1)])

    def use(self, images):
        return self.layer(images) * self.same + 0.1 * self.moving + self.seen.mean()


class Odd(Changing):
    """Sparse and expanded buffers, and one under two names."""

    def prepare(self):
        self.register_buffer("graph", (torch.eye(10) * 0.5).to_sparse())
        self.register_buffer("rows", torch.eye(10).to_sparse_csr())
        self.register_buffer("order", torch.arange(10).expand(3, 10))
        self.norm = torch.nn.BatchNorm1d(10)
        self.again = torch.nn.BatchNorm1d(10)
        self.again.running_mean = self.norm.running_mean

    def change(self, images):
        self.graph = (self.graph * 1.01).coalesce()

    def use(self, images):
        outputs = torch.sparse.mm(self.graph, self.norm(self.layer(images)).mT).mT
        return self.again((self.rows @ outputs.mT).mT[:, self.order[1]])


MODULES = [Anew, AnewBehind, Teacher, TeacherByData, Before, Sums, Private, Odd]


class Spectral(Changing):
    """A layer with unit vectors by which spectral norm divides its weight, and one with running means."""

    def prepare(self):
        torch.nn.utils.parametrizations.spectral_norm(self.layer)
        self.norm = torch.nn.BatchNorm1d(64)

    def change(self, images):
        pass

    def use(self, images):
        return 5 * self.layer(self.norm(images))

    @property
    def sigma(self):
        """The largest singular value of the layer's weight in evaluations: 1."""
        return float(torch.linalg.matrix_norm(self.eval().layer.weight.detach(), 2))


class Clamped(Changing):
    """Keeps its own weights within bounds."""

    def prepare(self):
        pass

    def change(self, images):
        self.layer.weight.data.clamp_(-0.05, 0.05)

    def use(self, images):
        return self.layer(images)


class Margins(torch.nn.Module):
    """A loss with parameters, a statistic and a counter of its own."""

    def __init__(self):
        super().__init__()
        self.temperature, self.bias = torch.nn.Parameter(torch.ones(())), torch.nn.Parameter(torch.zeros(10))
        self.register_buffer("mean", torch.zeros(10))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, outputs, targets):
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(outputs.mean(0), 0.1)
                self.calls += 1
        return functional.cross_entropy((outputs - self.mean) * self.temperature + self.bias, targets)


class Centred(torch.nn.Module):
    """A loss without parameters that subtracts a moving centre, as DINO's does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(10))

    def forward(self, outputs, targets):
        loss = functional.cross_entropy(outputs - self.centre, targets)
        if torch.is_grad_enabled():
            self.centre = 0.9 * self.centre + 0.1 * outputs.detach().mean(0)
        return loss


def plain(module, loss=functional.cross_entropy, steps=20, after=lambda: None):
    """Train by a plain loop, with the parameters of the loss; call `after` each step, and return all tensors."""
    values = {"run": {"steps": steps, "deterministic": True}, "model": {"factory": "python:object"}}
    config = from_dict(values | {"data": {"batch": BATCH}}, data_source=mpidl.Digits())
    job = Job.of(config, mpidl.Digits().open(), TorchModel(mlp(), "cross_entropy"))
    modules = [module, *([loss] if isinstance(loss, torch.nn.Module) else [])]
    module.train()
    for inputs, targets in batches(job):
        parameters = [each for part in modules for each in part.parameters() if each.requires_grad]
        found = torch.autograd.grad(loss(module(inputs), targets), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, found, strict=True):
                parameter -= RATE * gradient
        after()
    return tensors_of(*modules)


def tensors_of(*modules):
    """Return copies of all tensors, of those too that a ``state_dict`` lacks."""
    return {
        f"{number}.{name}": tensor.detach().to_dense().clone()
        for number, module in enumerate(modules)
        for name, tensor in [*module.named_parameters(), *module.named_buffers(remove_duplicate=False)]
    }


def same(found, expected):
    """Assert that tensors are the same but for rounding, with the same dtypes and shapes."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=1e-5, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )
