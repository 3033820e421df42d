"""What loops.py trains, by a loop of its own or by `mpidl.train`; prints the summary as JSON.

mpidl run own_loop.py -n RANKS speed loop|train DATA EPOCHS BATCH UNITS DIRECTORY
mpidl run own_loop.py -n RANKS state NAME STEPS DIRECTORY
mpidl run own_loop.py -n RANKS count NAME EPOCHS DIRECTORY
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import mpidl
from mpidl.data import Arrays, Idx
from mpidl.loops import Replica


def speed(way: str, data: str, epochs: str, batch: str, units: str, directory: str) -> dict[str, Any]:
    """Train a module on images."""
    import torch
    from torch.nn.functional import cross_entropy

    def loop(replica: Replica) -> None:
        for images, labels in replica.batches():
            replica.step(cross_entropy(replica.model(images), labels))

    torch.manual_seed(0)
    size = int(units)
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, size), torch.nn.ReLU(), torch.nn.Linear(size, size), torch.nn.ReLU(),
        torch.nn.Linear(size, 10),
    )  # fmt: skip
    options: Any = {"rule": mpidl.Adagrad(0.005), "batch": int(batch), "epochs": int(epochs), "dir": directory}
    if way == "loop":
        return mpidl.loop(loop, module, Idx(data), loss="cross_entropy", **options)
    return mpidl.train(module, Idx(data), loss="cross_entropy", **options)


class Vector:
    """Parameters alone."""

    def __init__(self, size: int) -> None:
        self.parameters = np.zeros(size)


def numbered(samples: int) -> Arrays:
    """Return samples that are their own numbers."""
    numbers = np.arange(samples, dtype=np.float64)[:, None]
    return Arrays((numbers, numbers), (numbers[:1], numbers[:1]))


def state(name: str, steps: str, directory: str) -> dict[str, Any]:
    """Train with noise from a generator that the loop saves; the run continues if it was begun."""

    def loop(replica: Replica) -> None:
        generator = np.random.default_rng(replica.number)
        if "generator" in replica.state:
            generator.bit_generator.state = replica.state["generator"]
        for numbers, _ in replica.batches():
            gradient = generator.normal(size=7) + np.sin(numbers.sum() * np.arange(7)) + replica.parameters
            replica.state["generator"] = generator.bit_generator.state
            time.sleep(0.002)
            replica.step(float(abs(gradient).sum()), gradient=gradient)

    options: Any = {"rule": mpidl.Adam(0.01), "batch": 5, "portion": 15, "steps": int(steps), "deterministic": True}
    options |= {"name": name, "dir": directory, "checkpoint_every": 0.1, "servers": 2}
    return mpidl.loop(loop, Vector(7), numbered(331), resume=True, **options)


def count(name: str, epochs: str, directory: str) -> dict[str, Any]:
    """Count in parameter i how often sample i is used; the summary has the counts that were found."""

    def loop(replica: Replica) -> None:
        for numbers, _ in replica.batches():
            gradient = np.zeros(len(model.parameters))
            gradient[numbers[:, 0].astype(int)] = -1
            time.sleep(0.002)
            replica.step(1.0, gradient=gradient)

    model = Vector(1999)
    options: Any = {"rule": mpidl.Sgd(1.0), "batch": 10, "portion": 20, "epochs": int(epochs), "servers": 2}
    summary = mpidl.loop(loop, model, numbered(1999), name=name, dir=directory, **options)
    return summary | {"counts": np.unique(model.parameters).tolist()}


found = {"speed": speed, "state": state, "count": count}[sys.argv[1]](*sys.argv[2:])
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(found))
