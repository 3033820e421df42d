"""Small modules of the kinds that people build with PyTorch, the data that each takes, and plain loops to compare with.

All but a few are float64, so that a difference of rounding stays far below one of meaning.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from mpidl.data import Arrays, Portions
from mpidl.data.batch import seed_of_batch

SAMPLES, BATCH, STEPS, SEED, RATE, CLASSES = 12, 4, 4, 3, 0.05, 3

#: Shapes of samples by kind; ids are below 7.
SHAPES = {
    "vector": (6,),
    "image": (3, 8, 8),
    "sequence": (5, 4),
    "signal": (2, 16),
    "volume": (1, 4, 4, 4),
    "ids": (5,),
}
IDS = 7


def inputs_of(kind, samples=SAMPLES):
    random = np.random.default_rng(1)
    shape = (samples, *SHAPES[kind])
    return random.integers(1, IDS, shape) if kind == "ids" else random.normal(size=shape)


def data_of(kind):
    inputs, targets = inputs_of(kind), np.arange(SAMPLES) % CLASSES
    return Arrays((inputs, targets), (inputs[:4], targets[:4]))


class Case(NamedTuple):
    """A function that makes the module, with random initial values, and how it is trained."""

    make: object
    kind: str
    loss: object = functional.cross_entropy


ZOO: dict[str, Case] = {}


def zoo(kind, loss=functional.cross_entropy):
    """Add a class or a function that makes a module to `ZOO`, under its name."""

    def add(make):
        ZOO[make.__name__] = Case(make, kind, loss)
        return make

    return add


def made(name):
    """Return a new module of this name, always with the same values."""
    torch.manual_seed(SEED)
    return ZOO[name].make().double()


def batches(kind, steps=STEPS):
    """Yield number, inputs and targets of the batches of a run on one worker, whose portions are batches."""
    inputs, targets = inputs_of(kind), np.arange(SAMPLES) % CLASSES
    portions, number = Portions(SAMPLES, BATCH, BATCH, SEED), 0
    while True:
        for indices in portions.batches(number):
            if number == steps:
                return
            yield number, torch.from_numpy(inputs[indices]), torch.from_numpy(targets[indices])
        number += 1


def plain_loop(module, name, steps=STEPS):
    """Train a module by SGD as one does without this package."""
    case, optimiser = ZOO[name], torch.optim.SGD(module.parameters(), RATE)
    module.train()
    for number, inputs, targets in batches(case.kind, steps):
        torch.manual_seed(seed_of_batch(SEED, number))
        optimiser.zero_grad()
        case.loss(module(inputs), targets).backward()
        optimiser.step()
    return module


def train_on(module, name, optimiser):
    """Train a module on by an optimiser of PyTorch; return what the closure's losses were."""
    case, losses = ZOO[name], []
    module.train()
    for number, inputs, targets in batches(case.kind, 3):

        def closure(number=number, inputs=inputs, targets=targets):
            torch.manual_seed(number)
            optimiser.zero_grad()
            loss = case.loss(module(inputs), targets)
            loss.backward()
            losses.append(loss.item())
            return loss

        optimiser.step(closure)
    return losses


def head(width, *before):
    return nn.Sequential(*before, nn.Linear(width, CLASSES))


def pooled(*before, width):
    return nn.Sequential(*before, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


class Last(nn.Module):
    """The first of several results, at the last place of a sequence."""

    def forward(self, results):
        return (results[0] if isinstance(results, tuple) else results)[:, -1]


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
    import warnings

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


@zoo("vector")
class LowRank(nn.Module):
    """A frozen layer with a trained product of two thin matrices beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, CLASSES).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(CLASSES, 2))

    def forward(self, inputs):
        return self.base(inputs) + inputs @ self.down.t() @ self.up.t()


# Where parameters are.


@zoo("vector")
class Dictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterDict({"O": torch.randn(6, CLASSES), "H": torch.randn(6, 6)})
        self.biases = nn.ParameterList([torch.zeros(6), torch.zeros(CLASSES)])

    def forward(self, inputs):
        return (inputs @ self.weights["H"] + self.biases[0]).tanh() @ self.weights["O"] + self.biases[1]


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

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.first.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
        self.first.register_forward_hook(lambda module, given, result: result.tanh())
        self.last.register_full_backward_hook(lambda module, before, after: (before[0] * 0.5,))
        self.first.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))

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


# Convolutions.


@zoo("signal")
def convolution1d():
    return head(4, nn.Conv1d(2, 4, 5, padding="same", padding_mode="circular"), nn.MaxPool1d(16), nn.Flatten())


@zoo("volume")
def convolution3d():
    return head(2, nn.Conv3d(1, 2, 3), nn.BatchNorm3d(2), nn.AdaptiveMaxPool3d(1), nn.Flatten())


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


# Sequences.


@zoo("ids")
def embedding():
    return head(10, nn.Embedding(IDS, 2, padding_idx=1), nn.Flatten())


@zoo("ids")
def embedding_with_norm():
    return head(10, nn.Embedding(IDS, 2, max_norm=1.0), nn.Flatten())


@zoo("ids")
def embedding_bag():
    return head(4, nn.EmbeddingBag(IDS, 4, mode="mean"))


class Transposed(nn.Module):
    def forward(self, inputs):
        return inputs.transpose(1, 2)


@zoo("ids")
def gated_convolution():
    return head(
        3, nn.Embedding(IDS, 4), Transposed(), nn.Conv1d(4, 6, 3), nn.GLU(1), nn.AdaptiveAvgPool1d(1), nn.Flatten()
    )


@zoo("sequence")
def elman():
    return head(3, nn.RNN(4, 3, nonlinearity="relu", batch_first=True), Last())


@zoo("sequence")
def lstm():
    return head(3, nn.LSTM(4, 3, num_layers=2, dropout=0.3, batch_first=True), Last())


@zoo("sequence")
def projected_lstm():
    return head(4, nn.LSTM(4, 3, proj_size=2, bidirectional=True, batch_first=True), Last())


@zoo("sequence")
def gru():
    return head(6, nn.GRU(4, 3, bidirectional=True, batch_first=True), Last())


@zoo("sequence")
class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.start, self.last = nn.LSTMCell(4, 3), nn.Parameter(torch.zeros(2, 3)), nn.Linear(3, CLASSES)

    def forward(self, inputs):
        state = tuple(each.expand(len(inputs), 3) for each in self.start)
        for step in inputs.unbind(1):
            state = self.cell(step, state)
        return self.last(state[0])


@zoo("sequence")
class Attention(nn.Module):
    """Attention with a mask, with keys and values of other widths."""

    def __init__(self):
        super().__init__()
        self.attention, self.last = (
            nn.MultiheadAttention(4, 2, 0.1, kdim=3, vdim=2, batch_first=True),
            nn.Linear(4, CLASSES),
        )
        self.register_buffer("mask", torch.full((5, 5), float("-inf")).triu(1))

    def forward(self, inputs):
        found, _ = self.attention(inputs, inputs[..., :3], inputs[..., :2], attn_mask=self.mask)
        return self.last(found.mean(1))


@zoo("sequence")
def encoder():
    layer = nn.TransformerEncoderLayer(4, 2, 6, 0.1, batch_first=True, norm_first=True)
    return head(4, nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), Last())


@zoo("sequence")
class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Transformer(4, 2, 1, 1, 6, 0.1, batch_first=True)
        self.query, self.last = nn.Parameter(torch.randn(1, 2, 4)), nn.Linear(4, CLASSES)

    def forward(self, inputs):
        return self.last(self.inner(inputs, self.query.expand(len(inputs), 2, 4)).mean(1))


@zoo("image")
class Vision(nn.Module):
    """Patches with a token of the class and learned positions."""

    def __init__(self):
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 4, 4, stride=4), nn.Parameter(torch.zeros(1, 1, 4))
        self.places, self.last = nn.Parameter(torch.randn(1, 5, 4)), nn.Linear(4, CLASSES)
        self.block = nn.TransformerEncoderLayer(4, 2, 6, 0.0, activation="gelu", batch_first=True)

    def forward(self, inputs):
        patches = self.patches(inputs).flatten(2).transpose(1, 2)
        values = torch.cat([self.token.expand(len(inputs), 1, 4), patches], 1) + self.places
        return self.last(self.block(values)[:, 0])


# Losses with parameters.


class Centres(nn.Module):
    """Cross-entropy and the distance to the centre of each class (Wen et al. 2016)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(SEED)
        self.centres = nn.Parameter(torch.randn(CLASSES, CLASSES, dtype=torch.float64))

    def forward(self, outputs, targets):
        distance = (outputs - self.centres[targets]).square().sum(1).mean()
        return functional.cross_entropy(outputs, targets) + 0.1 * distance


@zoo("vector", functional.nll_loss)
def log_probabilities():
    return head(8, nn.Linear(6, 8), nn.Mish()).append(nn.LogSoftmax(1))
