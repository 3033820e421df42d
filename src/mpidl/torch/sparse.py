"""Sparse tensors as the dense ones that make them up, which checkpoints and exports can hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch

from mpidl.data.nested import COMPONENTS, components

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
