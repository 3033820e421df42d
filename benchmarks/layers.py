"""Layers, forward and backward, against PyTorch on one thread, or on a GPU.

    pip install -r benchmarks/requirements.txt
    python benchmarks/layers.py [--device cuda] [--batch 64] [--only CASE ...]

Each case takes turns with the code of a PyTorch user, in float32, with gradients of inputs and parameters; the step of
the network also has the loss and an update by SGD. Prints the medians in milliseconds and the speed-ups over PyTorch,
and writes them to results/layers.json. Images are (height, width, channels).
OPENBLAS_CORETYPE=Haswell, NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx,+avx2,+fma and ONEDNN_MAX_CPU_ISA=AVX2 keep
both to AVX2. On a GPU a timing is that of 20 steps, after which the host waits; PyTorch may not use TF32, as mpidl
doesn't.
"""

from __future__ import annotations

import argparse
import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from harness import interleave, parse, save, table
from mpidl.data import Batch
from mpidl.device import choose
from mpidl.nn import LAYERS, Network
from mpidl.rules import Sgd

#: Steps of one timing on a GPU, which runs behind the host.
REPEATS = 20
CHANNELS_LAST, DEFAULT, UNFOLD, DENSE = "channels last", "default layout", "unfold and einsum", "PyTorch"
random = np.random.default_rng(0)
Step = Callable[[], None]


class Setting(NamedTuple):
    """The array module of our steps, NumPy or CuPy, and the samples of a step."""

    xp: Any
    batch: int

    def normal(self, *shape: int) -> Any:
        """Return numbers to compute with."""
        return self.xp.asarray(random.standard_normal(shape, dtype=np.float32))


def main() -> None:
    """Time all cases, print the table and save it."""
    parser = argparse.ArgumentParser(description="Layers against PyTorch on one thread, or on a GPU.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=64, help="samples of a step (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="timings of each (default: %(default)s)")
    parser.add_argument("--only", nargs="*", metavar="CASE", help="cases whose names begin so")
    options = parse(parser, batch=2, rounds=1, only=["dense 784", "conv2d (14, 14, 32)"])
    torch.set_num_threads(1)
    torch.set_default_device(options.device)
    torch.backends.cudnn.allow_tf32 = False
    place = choose(options.device, 0)
    repeats = 1 if options.device == "cpu" else REPEATS

    rows = []
    for name, (ours, peers) in cases(Setting(place.xp, options.batch)).items():
        if options.only and not name.startswith(tuple(options.only)):
            continue
        steps = {"mpidl": ours()} | {peer: make() for peer, make in peers.items()}
        timed = {each: partial(repeat, step, repeats) for each, step in steps.items()}
        for step in timed.values():
            step()
        seconds = {each: median(times) / repeats for each, times in interleave(timed, options.rounds).items()}
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
    print(f"on {place}, {options.batch} samples")
    print(table(rows))
    print(save("layers", rows))


def repeat(step: Step, times: int) -> None:
    """Take some steps, and wait for the GPU if they run there."""
    for _ in range(times):
        step()
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()


def cases(at: Setting) -> dict[str, tuple[Callable[[], Step], dict[str, Callable[[], Step]]]]:
    """Return, for each case, functions that make our step and PyTorch's."""
    found: dict[str, tuple[Callable[[], Step], dict[str, Callable[[], Step]]]] = {}
    for inputs, units in ((784, 1024), (1024, 1024), (3136, 128)):
        found[f"dense {inputs}-{units}"] = (
            lambda inputs=inputs, units=units: alone(at, layer("dense", units, activation="relu"), (inputs,)),
            {DENSE: lambda inputs=inputs, units=units: dense(at, inputs, units)},
        )
    for shape in ((28, 28, 1, 32, 3), (28, 28, 32, 64, 3), (14, 14, 64, 64, 3), (14, 14, 32, 64, 5)):
        *image, channels, size = shape
        found[f"conv2d {tuple(image)}, {channels} of {size}x{size}"] = (
            lambda image=image, channels=channels, size=size: alone(
                at, layer("conv2d", channels, size, padding="same", activation="relu"), image
            ),
            {
                CHANNELS_LAST: lambda shape=shape: convolution(at, shape, torch.channels_last),
                DEFAULT: lambda shape=shape: convolution(at, shape, torch.contiguous_format),
            },
        )
    for shape in ((28, 28, 1, 8, 10), (28, 28, 8, 8, 5), (16, 16, 16, 32, 3)):
        *image, channels, size = shape
        found[f"locally_connected2d {tuple(image)}, {channels} of {size}x{size}"] = (
            lambda image=image, channels=channels, size=size: alone(
                at, layer("locally_connected2d", channels, size, activation="relu"), image
            ),
            {UNFOLD: lambda shape=shape: locally_connected(at, shape)},
        )
    found["step of a Fashion-MNIST CNN"] = (
        lambda: our_network(at),
        {
            CHANNELS_LAST: lambda: their_network(at, torch.channels_last),
            DEFAULT: lambda: their_network(at, torch.contiguous_format),
        },
    )
    return found


def layer(type: str, *arguments: Any, **options: Any) -> Any:
    """Return a layer of this type."""
    return LAYERS[type](*arguments, **options)


def alone(at: Setting, of: Any, input_shape: Sequence[int]) -> Step:
    """Return the forward and backward pass of one layer, its inputs' gradient included."""
    network = Network([of], input_shape, xp=at.xp)
    network.parameters[:] = 0.05 * at.normal(network.layout.size)
    (call,) = network._passes.take(at.batch).calls
    outputs, gradient, work = call.outputs, call.output_gradient, call.workspace
    inputs, given = at.normal(at.batch, *input_shape), at.normal(*outputs.shape)
    input_gradient = at.xp.empty_like(inputs)
    work.training = True

    def step() -> None:
        of.forward(work, inputs, outputs)
        gradient[:] = given
        of.backward(work, inputs, outputs, gradient, input_gradient)

    return step


def differentiated(function: Callable[..., torch.Tensor], *variables: torch.Tensor) -> Step:
    """Return a step that computes a function of some variables, and the gradients of all of them."""
    for each in variables:
        each.requires_grad_()
    gradient = torch.randn_like(function(*variables))

    def step() -> None:
        for each in variables:
            each.grad = None
        function(*variables).backward(gradient)

    return step


def dense(at: Setting, inputs: int, units: int) -> Step:
    """Return PyTorch's dense layer."""
    return differentiated(
        lambda x, weight, bias: functional.relu(functional.linear(x, weight, bias)),
        torch.randn(at.batch, inputs), 0.05 * torch.randn(units, inputs), torch.zeros(units),
    )  # fmt: skip


def convolution(at: Setting, shape: Sequence[int], memory: torch.memory_format) -> Step:
    """Return PyTorch's convolution."""
    height, width, depth, channels, size = shape
    return differentiated(
        lambda x, weight, bias: functional.relu(functional.conv2d(x, weight, bias, padding="same")),
        torch.randn(at.batch, depth, height, width).contiguous(memory_format=memory),
        (0.05 * torch.randn(channels, depth, size, size)).contiguous(memory_format=memory),
        torch.zeros(channels),
    )


def locally_connected(at: Setting, shape: Sequence[int]) -> Step:
    """Return PyTorch users' code for unshared weights."""
    height, width, depth, channels, size = shape
    positions = (height - size + 1) * (width - size + 1)
    return differentiated(
        lambda x, weight, bias: functional.relu(
            torch.einsum("nkp,pko->nop", functional.unfold(x, size), weight) + bias
        ),
        torch.randn(at.batch, depth, height, width),
        0.05 * torch.randn(positions, depth * size * size, channels),
        torch.zeros(channels, positions),
    )


def our_network(at: Setting) -> Step:
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
        xp=at.xp,
    )
    labels = at.xp.asarray(random.integers(0, 10, at.batch))
    batch, rule = Batch(at.normal(at.batch, 28, 28), labels), Sgd(0.01)
    return lambda: rule.update(network.parameters, (), network.loss_and_gradient(batch)[1], 1)


def their_network(at: Setting, memory: torch.memory_format) -> Step:
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
    images = torch.randn(at.batch, 1, 28, 28).contiguous(memory_format=memory)
    labels = torch.randint(0, 10, (at.batch,))
    rule = torch.optim.SGD(network.parameters(), 0.01, foreach=True)

    def step() -> None:
        rule.zero_grad()
        functional.cross_entropy(network(images), labels).backward()
        rule.step()

    return step


if __name__ == "__main__":
    main()
