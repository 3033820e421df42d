"""Layers, forward and backward, against PyTorch on one thread.

    pip install -r benchmarks/requirements.txt
    python benchmarks/layers.py [--only CASE ...]

Each case takes turns with what a PyTorch user writes for it, at batch 64 in float32, gradients of inputs and parameters
included; a whole step has the loss too. Prints the medians in milliseconds and how many times as fast as PyTorch that
is, and writes them to results/layers.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from harness import interleave, save, table

from mpidl.data import Batch
from mpidl.nn import LAYERS, Network
from mpidl.nn.losses import MeanSquaredError

BATCH = 64
OURS = "mpidl"
random = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    """Return numbers to compute with."""
    return random.standard_normal(shape, dtype=np.float32)


class Alone:
    """A layer with inputs, all gradients asked for."""

    def __init__(self, layer: Any, input_shape: Sequence[int]) -> None:
        self.layer = layer
        self.network = Network([layer], input_shape)
        self.network.parameters[:] = 0.05 * normal(self.network.layout.size)
        self.work = self.network._passes.take(BATCH)
        self.inputs = normal(BATCH, *input_shape)
        self.input_gradient = np.empty_like(self.inputs)
        self.gradient = normal(BATCH, *self.network.output_shape)

    def __call__(self) -> None:
        (outputs,), (gradient,), _, (workspace,) = self.work
        workspace.training = True
        self.layer.forward(workspace, self.inputs, outputs)
        gradient[:] = self.gradient
        self.layer.backward(workspace, self.inputs, outputs, gradient, self.input_gradient)


def torch_case(
    function: Callable[..., torch.Tensor], inputs: torch.Tensor, *parameters: torch.Tensor
) -> Callable[[], None]:
    """Return what computes a function of the inputs and parameters, and all gradients."""
    variables = [inputs.requires_grad_(), *(each.requires_grad_() for each in parameters)]
    gradient = torch.randn_like(function(*variables))

    def step() -> None:
        for each in variables:
            each.grad = None
        function(*variables).backward(gradient)

    return step
