"""Modules of layers: norms, reparametrised weights, convolutions, and blocks of well-known networks."""

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


@zoo("signal")
def convolution1d():
    return head(4, nn.Conv1d(2, 4, 5, padding="same", padding_mode="circular"), nn.MaxPool1d(16), nn.Flatten())


@zoo("volume")
def convolution3d():
    return head(2, nn.Conv3d(1, 2, 3), nn.BatchNorm3d(2), nn.AdaptiveMaxPool3d(1), nn.Flatten())


@zoo("image")
def unfolded():
    return pooled(nn.Unfold(3, stride=2), nn.Conv1d(27, 4, 1), nn.Fold((6, 6), (2, 2), stride=2), width=1)


@zoo("image")
def transposed():
    return pooled(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.ConvTranspose2d(4, 5, 3, stride=2, dilation=2), width=5)


@zoo("image")
def depthwise():
    return pooled(nn.Conv2d(3, 6, 3, groups=3, padding=2, dilation=2), nn.Conv2d(6, 4, 1), nn.Hardswish(), width=4)


@zoo("image")
def channels_last():
    module = pooled(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(), nn.Conv2d(4, 5, 3), width=5)
    return module.to(memory_format=torch.channels_last)


@zoo("image")
def shuffled():
    up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
    return pooled(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), up, nn.AvgPool2d(2), nn.LocalResponseNorm(2), width=2)


class Residual(nn.Module):
    def __init__(self, block, shortcut):
        super().__init__()
        self.block, self.shortcut = block, shortcut

    def forward(self, inputs):
        return torch.relu(self.block(inputs) + self.shortcut(inputs))


def convolved(before, after, size, **options):
    return nn.Sequential(
        nn.Conv2d(before, after, size, padding=size // 2, bias=False, **options), nn.BatchNorm2d(after)
    )


@zoo("image")
def residual():
    block = nn.Sequential(convolved(3, 4, 3, stride=2), nn.ReLU(inplace=True), convolved(4, 4, 3))
    return pooled(Residual(block, convolved(3, 4, 1, stride=2)), width=4)


@zoo("image")
def bottleneck():
    layers = [convolved(3, 2, 1), nn.ReLU(), convolved(2, 2, 3, groups=2), nn.ReLU(), convolved(2, 3, 1)]
    module = pooled(Residual(nn.Sequential(*layers), nn.Identity()), width=3)
    nn.init.zeros_(module[0].block[4][1].weight)
    return module


class Branches(nn.Module):
    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, inputs):
        return torch.cat([branch(inputs) for branch in self.branches], 1)


@zoo("image")
def inception():
    several = [convolved(3, 2, 1), nn.Sequential(convolved(3, 2, 1), nn.ReLU(), convolved(2, 2, 3)), convolved(3, 1, 5)]
    return pooled(Branches(*several, nn.MaxPool2d(3, 1, 1)), width=8)


@zoo("image")
def dense_block():
    growing = [Branches(nn.Identity(), convolved(3 + 2 * number, 2, 3)) for number in range(3)]
    return pooled(*growing, nn.ReLU(), nn.AvgPool2d(2), width=9)


class Excited(nn.Module):
    def __init__(self, channels):
        super().__init__()
        squeeze = [
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, 2, 1),
            nn.ReLU(),
            nn.Conv2d(2, channels, 1),
            nn.Sigmoid(),
        ]
        self.scale = nn.Sequential(*squeeze)

    def forward(self, inputs):
        return inputs * self.scale(inputs)


@zoo("image")
def inverted_residual():
    layers = [convolved(3, 6, 1), nn.ReLU6(), convolved(6, 6, 3, groups=6), Excited(6), convolved(6, 3, 1)]
    return pooled(Residual(nn.Sequential(*layers), nn.Identity()), width=3)


@zoo("image")
class ConvNext(nn.Module):
    """A block with layer scale, a norm over channels and stochastic depth."""

    def __init__(self):
        super().__init__()
        self.spread, self.norm = nn.Conv2d(3, 3, 5, padding=2, groups=3), nn.LayerNorm(3, eps=1e-6)
        self.wide, self.thin, self.last = nn.Linear(3, 6), nn.Linear(6, 3), nn.Linear(3, CLASSES)
        self.scale = nn.Parameter(torch.full((3,), 0.1))

    def forward(self, inputs):
        values = self.thin(functional.gelu(self.wide(self.norm(self.spread(inputs).permute(0, 2, 3, 1)))))
        values = (values * self.scale).permute(0, 3, 1, 2)
        if self.training:
            values = values * torch.empty(len(values), 1, 1, 1).bernoulli_(0.8).to(values) / 0.8
        return self.last((inputs + values).mean((2, 3)))


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
