"""The same for CuPy arrays, compiled by CUDA: kernels, and operations of CuPy's own where one says it all."""

from mpidl.nn.kernels.cuda.contrast import chain_contrast, channel_moments, contrast_slopes, normalise_contrast
from mpidl.nn.kernels.cuda.elementwise import chain_gelu, chain_leaky_relu, chain_relu, gelu, leaky_relu, relu
from mpidl.nn.kernels.cuda.normalisation import (
    chain_columns,
    chain_rows,
    column_moments,
    normalise_columns,
    normalise_rows,
    spread_columns,
)
from mpidl.nn.kernels.cuda.patches import gather_patches, patch_matrix, scatter_patches
from mpidl.nn.kernels.cuda.pooling import (
    average_pool,
    chain_average_pool,
    chain_l2_pool,
    chain_max_pool,
    l2_pool,
    max_pool,
)
from mpidl.nn.kernels.cuda.products import multiply
from mpidl.nn.kernels.cuda.rows import add_row, add_to_rows, sum_rows, take_rows

__all__ = [
    "add_row",
    "add_to_rows",
    "average_pool",
    "chain_average_pool",
    "chain_columns",
    "chain_contrast",
    "chain_gelu",
    "chain_l2_pool",
    "chain_leaky_relu",
    "chain_max_pool",
    "chain_relu",
    "chain_rows",
    "channel_moments",
    "column_moments",
    "contrast_slopes",
    "gather_patches",
    "gelu",
    "l2_pool",
    "leaky_relu",
    "max_pool",
    "multiply",
    "normalise_columns",
    "normalise_contrast",
    "normalise_rows",
    "patch_matrix",
    "relu",
    "scatter_patches",
    "spread_columns",
    "sum_rows",
    "take_rows",
]
