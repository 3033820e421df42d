"""Activation functions and their derivatives, in place; see `mpidl.nn.kernels.cpu.elementwise`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpidl.nn.kernels.cpu.elementwise import LEAK
from mpidl.nn.kernels.cuda.module import CudaModule

MODULE = CudaModule("elementwise")


def _each(kernel: str, *constants: float) -> Callable[..., None]:
    """Return a function of arrays of one shape that runs a kernel with one thread per element."""

    def apply(*arrays: Any) -> None:
        MODULE.launch(kernel, arrays[0].size, *arrays, *constants)

    return apply


relu, backprop_relu = _each("relu"), _each("backprop_relu")
leaky_relu, backprop_leaky_relu = _each("leaky_relu", LEAK), _each("backprop_leaky_relu", LEAK)
backprop_sigmoid, backprop_tanh = _each("backprop_sigmoid"), _each("backprop_tanh")
gelu, backprop_gelu = _each("gelu"), _each("backprop_gelu")
