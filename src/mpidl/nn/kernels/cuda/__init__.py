"""The same for CuPy arrays, compiled by CUDA: kernels, and operations of CuPy's own where one says it all."""

from mpidl.nn.kernels.cuda.elementwise import chain_gelu, chain_leaky_relu, chain_relu, gelu, leaky_relu, relu
from mpidl.nn.kernels.cuda.patches import gather_patches, scatter_patches
from mpidl.nn.kernels.cuda.rows import add_row, sum_rows

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
