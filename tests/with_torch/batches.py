"""Batches of all the kinds that collate functions make, and what a module computes of each."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    other: Any


@dataclass(frozen=True)
class Frozen:
    """A dataclass, whose fields are not all arguments."""

    x: Any
    other: Any


class Graph:
    """An object that moves itself, as those of libraries for graphs."""

    def __init__(self, x):
        self.x = x

    def to(self, device):
        return Graph(self.x.to(device))


def unpacked(packed):
    assert isinstance(packed, PackedSequence)
    return pad_packed_sequence(packed)[0].sum(0)


def first(x, *others):
    return x


def scaled(x, factor):
    assert isinstance(factor, float) or factor.dim() == 0
    return x * factor


DAYS = np.array(["2020-02-29", "2021-01-01"], "M8[D]")

#: The inputs of a batch, given features (n, 3), and what a module computes of its arguments: features again.
KINDS = {
    "tensor": (lambda x: x, first),
    "array": (lambda x: x.numpy(), first),
    "big-endian array": (lambda x: x.numpy().astype(">f8"), first),
    "reversed array": (lambda x: x.numpy()[:, ::-1], first),
    "read-only array": (lambda x: np.frombuffer(x.numpy().tobytes(), np.float32).reshape(x.shape), first),
    "list": (lambda x: [x, 1.0], first),
    "named tuple": (lambda x: Pair(x, 1), first),
    "named tuple in a dictionary": (lambda x: {"pair": Pair(x, None)}, lambda pair: pair.x),
    "dataclass": (lambda x: Frozen(x, ["a text"]), lambda value: value.x),
    "packed sequence": (lambda x: pack_sequence([each[None] for each in x]), unpacked),
    "packed sequence and tensor": (
        lambda x: (pack_sequence([each[None] for each in x]), x),
        lambda p, x: x + unpacked(p),
    ),
    "0-dim array": (lambda x: (x, np.array(0.5)), scaled),
    "0-dim tensor": (lambda x: (x, torch.tensor(0.5)), scaled),
    "NumPy's scalar": (lambda x: (x, np.float32(0.5)), scaled),
    "number": (lambda x: (x, 0.5), scaled),
    "empty tensor": (lambda x: (x, torch.empty(2, 0)), first),
    "empty array": (lambda x: (x, np.empty((2, 0))), first),
    "tensor that requires gradients": (lambda x: x.clone().requires_grad_() * 1, first),
    "bfloat16": (lambda x: x.bfloat16(), lambda x: x.float()),
    "sparse COO": (lambda x: x.to_sparse(), lambda x: x.to_dense()),
    "sparse CSR": (lambda x: x.to_sparse_csr(), lambda x: x.to_dense()),
    "sparse CSC and BSR": (
        lambda x: (x.to_sparse_csc(), x.to_sparse_bsr((1, 3))),
        lambda one, other: one.to_dense() + other.to_dense(),
    ),
    "times": (lambda x: (x, DAYS, DAYS[0]), first),
    "texts": (lambda x: (x, ["a", "b"], np.array(["a", "b"])), first),
    "complex": (lambda x: torch.complex(x, x), torch.abs),
    "object": (lambda x: (x, object()), first),
    "graph": (lambda x: Graph(x), lambda graph: graph.x),
}


class Module(torch.nn.Module):
    """A layer of what a function computes of the module's arguments."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = torch.nn.Linear(3, 2), function

    def forward(self, *arguments, **named):
        return self.layer(self.function(*arguments, **named))


class Collate:
    """A collate function whose batches have inputs of a kind."""

    def __init__(self, kind, factor=1.0):
        self.kind, self.factor = kind, factor

    def __call__(self, samples):
        features = torch.stack([torch.as_tensor(each[0]) for each in samples]) * self.factor
        return KINDS[self.kind][0](features), torch.tensor([each[1] for each in samples])


def every(samples):
    """Return a batch with inputs of all kinds."""
    made = {kind: Collate(kind)(samples) for kind in KINDS}
    return {kind: inputs for kind, (inputs, _) in made.items()}, made["tensor"][1]


class Samples:
    """Features and labels."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return np.arange(3 * index, 3 * index + 3, dtype=np.float32) / 10, index % 2
