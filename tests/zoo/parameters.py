"""Modules with parameters in odd places, and losses with parameters of their own."""

import torch
from torch import nn
from torch.nn import functional

from zoo.cases import CLASSES, zoo


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
