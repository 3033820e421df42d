"""Modules of layers: norms, reparametrised weights, convolutions, and networks with several ways through them."""

import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune

from zoo.cases import CLASSES, head, pooled, zoo

# Norms, dropout and activations.


@zoo("vector")
def dropout():
    return head(8, nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Dropout(0.4))


@zoo("vector")
def batch_norm():
    return head(8, nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU())


@zoo("image")
def batch_norm_without_momentum():
    return pooled(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None, affine=False), width=4)


@zoo("image")
def instance_norm():
    return pooled(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ELU(), width=4)


@zoo("image")
def group_norm():
    return pooled(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Dropout2d(0.3), width=4)


@zoo("vector")
def layer_norm():
    return head(8, nn.Linear(6, 8), nn.LayerNorm(8), nn.PReLU(8), nn.RMSNorm(8), nn.AlphaDropout(0.2))


# Reparametrised weights.


@zoo("vector")
def weight_norm():
    return head(8, parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh())


@zoo("vector")
def weight_norm_by_hook():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return head(8, nn.utils.weight_norm(nn.Linear(6, 8)), nn.Tanh())


@zoo("vector")
def spectral_norm():
    return head(8, parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh())


@zoo("vector")
def spectral_norm_by_hook():
    return head(8, nn.utils.spectral_norm(nn.Linear(6, 8)), nn.Tanh())


@zoo("vector")
def orthogonal():
    return head(6, parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh())


class Symmetric(nn.Module):
    def forward(self, values):
        return values.triu() + values.triu(1).transpose(-1, -2)


@zoo("vector")
def own_parametrisation():
    module = head(6, nn.Linear(6, 6), nn.Softplus())
    parametrize.register_parametrization(module[0], "weight", Symmetric())
    return module


@zoo("vector")
def pruned():
    module = head(8, nn.Linear(6, 8), nn.ReLU())
    prune.l1_unstructured(module[0], "weight", 0.5)
    prune.random_structured(module[2], "weight", 0.3, dim=1)
    return module


@zoo("vector")
def lazy():
    module = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(CLASSES))
    module(torch.zeros(4, 6))
    return module


# Convolutions.


@zoo("image")
def transposed():
    return pooled(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.ConvTranspose2d(4, 5, 3, stride=2, dilation=2), width=5)


@zoo("image")
def channels_last():
    module = pooled(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(), nn.Conv2d(4, 5, 3), width=5)
    return module.to(memory_format=torch.channels_last)


def convolved(before, after, size, **options):
    return nn.Sequential(
        nn.Conv2d(before, after, size, padding=size // 2, bias=False, **options), nn.BatchNorm2d(after)
    )


@zoo("image")
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.bottom = convolved(3, 4, 3), convolved(4, 6, 3)
        self.up, self.merge, self.last = (
            nn.ConvTranspose2d(6, 4, 2, stride=2),
            convolved(8, 4, 3),
            nn.Conv2d(4, CLASSES, 1),
        )

    def forward(self, inputs):
        skipped = torch.relu(self.down(inputs))
        values = self.up(torch.relu(self.bottom(functional.max_pool2d(skipped, 2))))
        return self.last(torch.relu(self.merge(torch.cat([skipped, values], 1)))).mean((2, 3))


def with_auxiliary(outputs, targets):
    if isinstance(outputs, tuple):
        return functional.cross_entropy(outputs[0], targets) + 0.3 * functional.cross_entropy(outputs[1], targets)
    return functional.cross_entropy(outputs, targets)


@zoo("image", with_auxiliary)
class Auxiliary(nn.Module):
    """A second head that only training has."""

    def __init__(self):
        super().__init__()
        self.body, self.first, self.last = nn.Conv2d(3, 4, 3), pooled(width=4), pooled(nn.Conv2d(4, 4, 3), width=4)

    def forward(self, inputs):
        values = torch.relu(self.body(inputs))
        return (self.last(values), self.first(values)) if self.training else self.last(values)
