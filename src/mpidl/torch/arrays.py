"""Tensors of PyTorch as arrays, arrays as tensors, and sparse tensors as dense ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mpidl.data.nested import COMPONENTS, components


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


SIZE = "size"


def taken_apart(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a dense tensor by its name, or those that make up a sparse one: ``"name.sparse_csr.values"`` and so on."""
    if tensor.layout is torch.strided:
        return {name: tensor}
    prefix = f"{name}.{str(tensor.layout).removeprefix('torch.')}"
    parts = components(tensor) | {SIZE: torch.tensor(tensor.shape)}
    return {f"{prefix}.{key}": part for key, part in parts.items()}


def put_together(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors with those that make up a sparse one replaced by it."""
    made, parts = dict(tensors), defaultdict[tuple[str, str], dict[str, torch.Tensor]](dict)
    for name, tensor in tensors.items():
        prefix, _, key = name.rpartition(".")
        name, _, layout = prefix.rpartition(".")
        if key in (*COMPONENTS.get(f"torch.{layout}", ()), SIZE):
            parts[name, layout][key] = tensor
    for (name, layout), own in parts.items():
        names = COMPONENTS.get(f"torch.{layout}", ())
        if own.keys() == {*names, SIZE} and names:
            for key in own:
                del made[f"{name}.{layout}.{key}"]
            made[name] = _sparse(layout, [own[key] for key in names], own[SIZE].tolist())
    return made


def _sparse(layout: str, parts: list[torch.Tensor], size: list[int]) -> torch.Tensor:
    if layout == "sparse_coo":
        return torch.sparse_coo_tensor(*parts, size, is_coalesced=True)
    return torch.sparse_compressed_tensor(*parts, size, layout=getattr(torch, layout))
