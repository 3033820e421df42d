"""Shared by the PyTorch peers: the network, the data, the evaluation and the report.

Importing it sets one thread a process, in the environment that spawned processes inherit.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import gzip
import json
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

HOST = "127.0.0.1"
SEED = 0


def arguments(description: str) -> argparse.Namespace:
    """Return the command line's options, the same for every peer."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="directory of the four Fashion-MNIST .gz files")
    parser.add_argument("--workers", type=int, default=2, help="processes that compute gradients")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128, help="samples in a worker's batch")
    parser.add_argument("--rate", type=float, default=0.01, help="Adagrad's rate")
    parser.add_argument("--target", type=float, help="test accuracy whose time is reported")
    parser.add_argument("--rendezvous", type=Path, help="a new file that all hosts see, if mpirun or srun starts this")
    parser.add_argument("--json", action="store_true", help="end stdout with the figures as one JSON object")
    return parser.parse_args()


def free_port() -> int:
    """Return a free TCP port of this host."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def load(directory: Path, split: str) -> tuple[Tensor, Tensor]:
    """Return the images, float32 (samples, 784) in [0, 1], and labels, int64 (samples,), of "train" or "t10k"."""
    images = read_idx(directory / f"{split}-images-idx3-ubyte.gz")
    labels = read_idx(directory / f"{split}-labels-idx1-ubyte.gz")
    pixels = torch.from_numpy(images.reshape(len(images), -1))
    return pixels.float().div_(255), torch.from_numpy(labels).long()


def read_idx(path: Path) -> np.ndarray:
    """Return the bytes of a gzipped idx file as a uint8 array of the shape in its header."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def network(dataset: object = None, seed: int = SEED) -> nn.Sequential:
    """Return 784-1024-1024-10 with relu, Glorot uniform weights and zero biases, the same on every process.

    It takes images, too, and is a ``model.factory`` of mpidl, which gives it the arguments.
    """
    torch.manual_seed(seed)
    hidden = (nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(1024, 10))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def shard(samples: int, worker: int, workers: int, epoch: int) -> Tensor:
    """Return this worker's samples of an epoch's permutation: shards are disjoint and of equal length."""
    permutation = torch.randperm(samples, generator=torch.Generator().manual_seed(SEED + epoch))
    return permutation[: samples - samples % workers][worker::workers]


def warm(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Run forward and backward once, so that libraries initialise before the clock starts."""
    functional.cross_entropy(model(images), labels).backward()
    model.zero_grad()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose largest output is their label."""
    correct = sum(
        int((model(part).argmax(1) == label).sum())
        for part, label in zip(images.split(1000), labels.split(1000), strict=True)
    )
    return correct / len(labels)


@dataclass
class Report:
    """The figures of a run; ``seconds`` is the time of training, without evaluation and start-up."""

    name: str
    workers: int
    target: float | None
    samples: int = 0
    seconds: float = 0.0
    seconds_to_target: float | None = None
    accuracies: list[float] = field(default_factory=list)

    def add(self, samples: int, seconds: float, accuracy: float) -> None:
        """Take in an epoch's samples and training seconds, and the test accuracy after it."""
        self.samples += samples
        self.seconds += seconds
        self.accuracies.append(accuracy)
        if self.target is not None and self.seconds_to_target is None and accuracy >= self.target:
            self.seconds_to_target = self.seconds
        print(
            f"{self.name}: epoch {len(self.accuracies)}, {self.samples / self.seconds:.0f} samples/s, "
            f"accuracy {accuracy:.4f}",
            file=sys.stderr,
            flush=True,
        )

    def print(self, as_json: bool) -> None:
        """Print the figures on stdout, as one line of text or one JSON object."""
        speed = self.samples / self.seconds
        if not as_json:
            print(f"{self.name}: {speed:.0f} samples/s, accuracy {self.accuracies[-1]:.4f}", flush=True)
            return
        figures = {
            "name": self.name,
            "workers": self.workers,
            "epochs": len(self.accuracies),
            "samples": self.samples,
            "seconds": self.seconds,
            "samples_per_second": speed,
            "test_accuracy": self.accuracies[-1],
            "seconds_to_target": self.seconds_to_target,
            "accuracies": self.accuracies,
        }
        print(json.dumps(figures), flush=True)
