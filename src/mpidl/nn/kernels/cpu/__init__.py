"""Kernels for NumPy arrays, compiled by Numba."""

# ruff: noqa: F401 (layers find them by their names)

from mpidl.nn.kernels.cpu.elementwise import (
    backprop_gelu,
    backprop_leaky_relu,
    backprop_relu,
    backprop_sigmoid,
    backprop_tanh,
    dropout,
    gelu,
    leaky_relu,
    relu,
)
from mpidl.nn.kernels.cpu.matrices import add_row, add_to_rows, matmul, sum_rows, take_columns, take_rows
from mpidl.nn.kernels.cpu.normalisation import (
    backprop_columns,
    backprop_contrast,
    backprop_rows,
    backprop_scale_shift,
    channel_moments,
    column_moments,
    contrast_slopes,
    normalise_columns,
    normalise_contrast,
    normalise_rows,
)
from mpidl.nn.kernels.cpu.patches import gather_patches, patch_matrix, scatter_patches
from mpidl.nn.kernels.cpu.pooling import backprop_max_pool, backprop_pool, max_pool, pool
