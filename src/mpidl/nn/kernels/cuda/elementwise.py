"""Activations, in place; see `mpidl.nn.kernels.cpu.elementwise`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpidl.nn.kernels.cpu.elementwise import LEAK
from mpidl.nn.kernels.cuda.source import Source

SOURCE = Source("elementwise")


def _each(kernel: str, *constants: float) -> Callable[..., None]:
    """Return a function of arrays of one shape, which runs a kernel with a thread for each of their elements."""

    def apply(*arrays: Any) -> None:
        SOURCE.launch(kernel, arrays[0].size, *arrays, *constants)

    return apply


relu, chain_relu = _each("relu"), _each("chain_relu")
leaky_relu, chain_leaky_relu = _each("leaky_relu", LEAK), _each("chain_leaky_relu", LEAK)
gelu, chain_gelu = _each("gelu"), _each("chain_gelu")
