"""A small causal language model in PyTorch, and the text that it learns; see torch_transformer.toml."""

import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import mpidl

#: Packages of the standard library whose sources are the text.
PACKAGES = ("asyncio", "email", "json", "logging", "unittest", "xml")
#: Bytes of a sample at most.
LENGTH = 128
#: What stands behind a sample that is shorter than others of its batch, and is not to be predicted.
NOTHING = -100


class Text:
    """Paragraphs of Python, as bytes: samples of unequal length.

    A sample is the bytes of a paragraph but its last, and those that follow each of them.
    """

    def __init__(self, paragraphs: list[bytes]) -> None:
        self.paragraphs = paragraphs

    def __len__(self) -> int:
        return len(self.paragraphs)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        codes = np.frombuffer(self.paragraphs[index], np.uint8).astype(np.int64)
        return codes[:-1], codes[1:]


def collate(samples: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, int]:
    """Return inputs and targets of the length of the longest sample, and the number of bytes to predict."""
    longest = max(len(inputs) for inputs, _ in samples)
    inputs = np.zeros((len(samples), longest), np.int64)
    targets = np.full((len(samples), longest), NOTHING, np.int64)
    for row, (given, following) in enumerate(samples):
        inputs[row, : len(given)], targets[row, : len(following)] = given, following
    return inputs, targets, int((targets != NOTHING).sum())


def text() -> mpidl.Indexed:
    """Return the paragraphs of the sources, each tenth of them to test with."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for package in PACKAGES for path in (library / package).rglob("*.py"))
    paragraphs = [part for path in files for part in path.read_bytes().split(b"\n\n") if len(part) > 16]
    pieces = [part[start : start + LENGTH] for part in paragraphs for start in range(0, len(part), LENGTH)]
    pieces = [piece for piece in pieces if len(piece) > 1]
    train = [piece for number, piece in enumerate(pieces) if number % 10]
    return mpidl.Indexed(Text(train), Text(pieces[::10]), collate=collate)


class LanguageModel(nn.Module):
    """A transformer that predicts the next byte; its first and its last matrix are the same."""

    def __init__(self, width: int = 96, heads: int = 4, layers: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.last = nn.Linear(width, 256)
        self.last.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        length = codes.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=codes.device)
        values = self.embedding(codes) + self.positions[:length]
        return self.last(self.layers(values, mask=mask, is_causal=True))


def language_model(dataset, seed):
    """Return the model and its loss: the mean over the bytes of a batch."""
    torch.manual_seed(seed)
    return LanguageModel(), loss


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of what is to be predicted."""
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=NOTHING)
