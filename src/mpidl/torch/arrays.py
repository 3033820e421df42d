"""Tensors of PyTorch as arrays, and arrays as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor in the host's memory: dense, and float32 where NumPy has no such floats."""
    values = dense(tensor)
    if values.is_floating_point() and values.dtype not in (torch.float16, torch.float32, torch.float64):
        values = values.float()
    array: np.ndarray = values.numpy()
    return array.copy()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor in the host's memory, neither sparse nor quantised."""
    values = tensor.detach().cpu()
    if values.is_quantized:
        return values.dequantize()
    return values if values.layout is torch.strided else values.to_dense()


def as_tensor(array: Any) -> torch.Tensor:
    """Return a NumPy or CuPy array as a tensor of the same memory."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)
