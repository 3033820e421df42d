"""Loops for NumPy arrays, compiled by Numba."""

from mpidl.nn.kernels.cpu.elementwise import chain_gelu, chain_leaky_relu, chain_relu, gelu, leaky_relu, relu
from mpidl.nn.kernels.cpu.patches import gather_patches, scatter_patches
from mpidl.nn.kernels.cpu.rows import add_row, sum_rows

__all__ = [
    "add_row",
    "chain_gelu",
    "chain_leaky_relu",
    "chain_relu",
    "gather_patches",
    "gelu",
    "leaky_relu",
    "relu",
    "scatter_patches",
    "sum_rows",
]
