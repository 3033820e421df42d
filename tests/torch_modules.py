"""Small PyTorch modules for the embedded digits, and a plain loop that trains them."""

from itertools import count

import torch

from mpidl.data.loader import Loader
from mpidl.job.placed import place

functional = torch.nn.functional


def mlp(seed=0, dtype=torch.float32, dropout=0.0):
    torch.manual_seed(seed)
    layers = [torch.nn.Flatten(), torch.nn.Linear(64, 33), torch.nn.ReLU(), torch.nn.Dropout(dropout)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(33, 10)).to(dtype)


class Cnn(torch.nn.Module):
    """Convolutions with batch normalisation."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(1, 6, 3, padding=1), torch.nn.Conv2d(6, 7, 3, stride=2)
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(6), torch.nn.BatchNorm2d(7)])
        self.last = torch.nn.Linear(7, 10)

    def forward(self, images):
        values = torch.relu(self.norms[0](self.first(images.reshape(-1, 1, 8, 8))))
        return self.last(torch.relu(self.norms[1](self.second(values))).mean((2, 3)))


class Transformer(torch.nn.Module):
    """Attention over the rows of an image, with a mask and with tied weights."""

    def __init__(self, width=12, dropout=0.0):
        super().__init__()
        self.rows = torch.nn.Linear(8, width)
        self.block = torch.nn.TransformerEncoderLayer(width, 3, 17, dropout, batch_first=True)
        self.again = torch.nn.Linear(8, width)
        self.again.weight = self.rows.weight
        self.last = torch.nn.Linear(width, 10)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(8))

    def forward(self, images):
        rows = images.reshape(-1, 8, 8)
        return self.last(self.block(self.rows(rows) + self.again(rows.flip(1)), src_mask=self.mask).mean(1))


def cnn(seed=0):
    torch.manual_seed(seed)
    return Cnn()


def transformer(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    return Transformer(dropout=dropout)


def noisy(dataset=None, seed=0):
    """Batch normalisation, dropout and a frozen layer; a factory of jobs, too."""
    torch.manual_seed(seed)
    frozen = torch.nn.Linear(64, 31).requires_grad_(False)
    layers = [torch.nn.Linear(31, 17), torch.nn.BatchNorm1d(17), torch.nn.ReLU(), torch.nn.Dropout(0.3)]
    return torch.nn.Sequential(torch.nn.Flatten(), frozen, *layers, torch.nn.Linear(17, 10))


def batches(job):
    """Yield the batches of a job with one replica, as tensors."""
    loader, split = (
        Loader(place(job, 1).schedule, job.dataset.train, count().__next__, lambda epoch: None),
        job.dataset.train,
    )
    while (minibatch := loader.next()) is not None:
        batch = split.take(minibatch)
        yield torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)


def plain_loop(module, job, rate, loss=functional.cross_entropy):
    """Train a module as one does without this package."""
    module.train()
    for inputs, targets in batches(job):
        module.zero_grad()
        loss(module(inputs), targets).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= rate * parameter.grad
