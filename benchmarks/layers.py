"""Layers, forward and backward, against PyTorch on one thread.

    pip install -r benchmarks/requirements.txt
    python benchmarks/layers.py [--only CASE ...]

Each case takes turns with what a PyTorch user writes for it, at batch 64 in float32, gradients of inputs and parameters
included; the step of the network has the loss too, and an update by SGD. Prints the medians in milliseconds and how
many times as fast as PyTorch that is, and writes them to results/layers.json. Images are (height, width, channels).
OPENBLAS_CORETYPE=Haswell, NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx,+avx2,+fma and ONEDNN_MAX_CPU_ISA=AVX2 hold
both to AVX2.
"""

from __future__ import annotations

import argparse
import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from harness import interleave, save, table
from mpidl.data import Batch
from mpidl.nn import LAYERS, Network
from mpidl.rules import Sgd

BATCH = 64
CHANNELS_LAST, DEFAULT, UNFOLD, DENSE = "channels last", "default layout", "unfold and einsum", "PyTorch"
random = np.random.default_rng(0)
Step = Callable[[], None]


def main() -> None:
    """Time all cases, print the table and save it."""
    parser = argparse.ArgumentParser(description="Layers against PyTorch on one thread.")
    parser.add_argument("--rounds", type=int, default=15, help="timings of each (default: %(default)s)")
    parser.add_argument("--only", nargs="*", metavar="CASE", help="cases whose names begin so")
    options = parser.parse_args()
    torch.set_num_threads(1)

    rows = []
    for name, (ours, peers) in cases().items():
        if options.only and not name.startswith(tuple(options.only)):
            continue
        steps = {"mpidl": ours()} | {peer: make() for peer, make in peers.items()}
        for step in steps.values():
            step()
        seconds = {each: median(times) for each, times in interleave(steps, options.rounds).items()}
        for peer in peers:
            rows.append(
                {
                    "case": name,
                    "mpidl ms": 1e3 * seconds["mpidl"],
                    "PyTorch": peer,
                    "PyTorch ms": 1e3 * seconds[peer],
                    "times as fast": seconds[peer] / seconds["mpidl"],
                }
            )
    print(table(rows))
    print(save("layers", rows))


def cases() -> dict[str, tuple[Callable[[], Step], dict[str, Callable[[], Step]]]]:
    """Return, for each case, what makes our step and PyTorch's."""
    found: dict[str, tuple[Callable[[], Step], dict[str, Callable[[], Step]]]] = {}
    for inputs, units in ((784, 1024), (1024, 1024), (3136, 128)):
        found[f"dense {inputs}-{units}"] = (
            lambda inputs=inputs, units=units: alone(layer("dense", units, activation="relu"), (inputs,)),
            {DENSE: lambda inputs=inputs, units=units: dense(inputs, units)},
        )
    for shape in ((28, 28, 1, 32, 3), (28, 28, 32, 64, 3), (14, 14, 64, 64, 3), (14, 14, 32, 64, 5)):
        *image, channels, size = shape
        found[f"conv2d {tuple(image)}, {channels} of {size}x{size}"] = (
            lambda image=image, channels=channels, size=size: alone(
                layer("conv2d", channels, size, padding="same", activation="relu"), image
            ),
            {
                CHANNELS_LAST: lambda shape=shape: convolution(shape, torch.channels_last),
                DEFAULT: lambda shape=shape: convolution(shape, torch.contiguous_format),
            },
        )
    for shape in ((28, 28, 1, 8, 10), (28, 28, 8, 8, 5), (16, 16, 16, 32, 3)):
        *image, channels, size = shape
        found[f"locally_connected2d {tuple(image)}, {channels} of {size}x{size}"] = (
            lambda image=image, channels=channels, size=size: alone(
                layer("locally_connected2d", channels, size, activation="relu"), image
            ),
            {UNFOLD: lambda shape=shape: locally_connected(shape)},
        )
    found["step of a Fashion-MNIST CNN"] = (
        our_network,
        {
            CHANNELS_LAST: lambda: their_network(torch.channels_last),
            DEFAULT: lambda: their_network(torch.contiguous_format),
        },
    )
    return found


def layer(type: str, *arguments: Any, **options: Any) -> Any:
    """Return a layer of this type."""
    return LAYERS[type](*arguments, **options)


def normal(*shape: int) -> np.ndarray:
    """Return numbers to compute with."""
    return random.standard_normal(shape, dtype=np.float32)


def alone(of: Any, input_shape: Sequence[int]) -> Step:
    """Return the forward and backward pass of one layer, its inputs' gradient included."""
    network = Network([of], input_shape)
    network.parameters[:] = 0.05 * normal(network.layout.size)
    (call,) = network._passes.take(BATCH).calls
    outputs, gradient, work = call.outputs, call.output_gradient, call.workspace
    inputs, given = normal(BATCH, *input_shape), normal(*outputs.shape)
    input_gradient = np.empty_like(inputs)
    work.training = True

    def step() -> None:
        of.forward(work, inputs, outputs)
        gradient[:] = given
        of.backward(work, inputs, outputs, gradient, input_gradient)

    return step


def differentiated(function: Callable[..., torch.Tensor], *variables: torch.Tensor) -> Step:
    """Return what computes a function of some variables, and the gradients of all of them."""
    for each in variables:
        each.requires_grad_()
    gradient = torch.randn_like(function(*variables))

    def step() -> None:
        for each in variables:
            each.grad = None
        function(*variables).backward(gradient)

    return step


def dense(inputs: int, units: int) -> Step:
    """Return PyTorch's dense layer."""
    return differentiated(
        lambda x, weight, bias: functional.relu(functional.linear(x, weight, bias)),
        torch.randn(BATCH, inputs), 0.05 * torch.randn(units, inputs), torch.zeros(units),
    )  # fmt: skip


def convolution(shape: Sequence[int], memory: torch.memory_format) -> Step:
    """Return PyTorch's convolution."""
    height, width, depth, channels, size = shape
    return differentiated(
        lambda x, weight, bias: functional.relu(functional.conv2d(x, weight, bias, padding="same")),
        torch.randn(BATCH, depth, height, width).contiguous(memory_format=memory),
        (0.05 * torch.randn(channels, depth, size, size)).contiguous(memory_format=memory),
        torch.zeros(channels),
    )


def locally_connected(shape: Sequence[int]) -> Step:
    """Return what PyTorch users write for unshared weights."""
    height, width, depth, channels, size = shape
    positions = (height - size + 1) * (width - size + 1)
    return differentiated(
        lambda x, weight, bias: functional.relu(
            torch.einsum("nkp,pko->nop", functional.unfold(x, size), weight) + bias
        ),
        torch.randn(BATCH, depth, height, width),
        0.05 * torch.randn(positions, depth * size * size, channels),
        torch.zeros(channels, positions),
    )


def our_network() -> Step:
    """Return a step of a small convolutional network."""
    network = Network(
        [
            layer("conv2d", 32, 3, padding="same", activation="relu"),
            layer("max_pool2d", 2),
            layer("conv2d", 64, 3, padding="same", activation="relu"),
            layer("max_pool2d", 2),
            layer("dense", 128, activation="relu"),
            layer("dense", 10),
        ],
        (28, 28),
    )
    batch, rule = Batch(normal(BATCH, 28, 28), random.integers(0, 10, BATCH)), Sgd(0.01)
    return lambda: rule.update(network.parameters, (), network.loss_and_gradient(batch)[1], 1)


def their_network(memory: torch.memory_format) -> Step:
    """Return a step of the same network in PyTorch."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(7 * 7 * 64, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    ).to(memory_format=memory)  # type: ignore[call-overload]
    images = torch.randn(BATCH, 1, 28, 28).contiguous(memory_format=memory)
    labels = torch.randint(0, 10, (BATCH,))
    rule = torch.optim.SGD(network.parameters(), 0.01, foreach=True)

    def step() -> None:
        rule.zero_grad()
        functional.cross_entropy(network(images), labels).backward()
        rule.step()

    return step


if __name__ == "__main__":
    main()
