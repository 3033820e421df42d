"""Values nested in tuples, lists, mappings and dataclasses, as samples and batches are, and digests of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from mpidl.data.columns import detached
from mpidl.errors import kind_of

#: The dense tensors of PyTorch's sparse ones, by layout.
COMPONENTS = {
    "torch.sparse_coo": ("indices", "values"),
    **dict.fromkeys(("torch.sparse_csr", "torch.sparse_bsr"), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys(("torch.sparse_csc", "torch.sparse_bsc"), ("ccol_indices", "row_indices", "values")),
}
#: Between a digest and the kinds of values that it leaves out.
WITHOUT = " without "


def parts_of(values: Any) -> dict[Any, Any] | None:
    """Return the parts of a tuple, list, mapping or dataclass by their indices or keys; None of anything else."""
    if isinstance(values, tuple | list):
        return dict(enumerate(values))
    if isinstance(values, Mapping):
        return dict(values.items())
    if is_dataclass(values) and not isinstance(values, type):
        return {field.name: getattr(values, field.name) for field in fields(values)}
    return None


def rebuilt(values: Any, parts: Mapping[Any, Any]) -> Any:
    """Return a value of the same type as `values`, whose `parts_of` these are."""
    if isinstance(values, tuple | list):
        named = hasattr(values, "_fields")
        return type(values)(*parts.values()) if named else type(values)(parts.values())
    if isinstance(values, Mapping) and not isinstance(values, MutableMapping):
        return dict(parts)
    same = copy.copy(values)
    if isinstance(same, MutableMapping):
        same.update(parts)
        return same
    for name, part in parts.items():
        object.__setattr__(same, name, part)  # also of frozen ones
    return same


def leaves(values: Any) -> Iterator[Any]:
    """Yield what is in nested values, without None."""
    parts = parts_of(values)
    if parts is not None:
        for each in parts.values():
            yield from leaves(each)
    elif values is not None:
        yield values


def components(tensor: Any) -> dict[str, Any]:
    """Return the dense tensors that make up a sparse one of PyTorch by their names; none of anything else."""
    layout = str(getattr(tensor, "layout", ""))
    if layout == "torch.sparse_coo":
        tensor = tensor.detach().coalesce()
    return {name: getattr(tensor, name)() for name in COMPONENTS.get(layout, ())}


class Digest:
    """A checksum of values; those that are neither arrays, tensors, numbers nor text are left out."""

    def __init__(self, samples: int) -> None:
        self._checksum, self._left_out = xxhash.xxh3_64(str(samples).encode()), set[str]()

    def update(self, values: Any) -> None:
        """Add nested values."""
        for leaf in leaves(values):
            for each in components(leaf).values() or (leaf,):
                bits = _bits(each)
                if bits is None:
                    self._left_out.add(kind_of(leaf))
                else:
                    self._checksum.update(bits.data)

    def text(self) -> str:
        """Return the checksum in hexadecimal digits, and what it leaves out."""
        left_out = WITHOUT + ", ".join(sorted(self._left_out)) if self._left_out else ""
        return self._checksum.hexdigest() + left_out


def _bits(value: Any) -> NDArray[np.uint8] | None:
    if isinstance(value, str | bytes):
        return np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    if not isinstance(value, int | float | complex) and not hasattr(value, "__array__"):
        return None
    try:
        array = np.ascontiguousarray(detached(value))
    except Exception:  # arrays and tensors of other libraries raise all kinds of errors
        return None
    return None if array.dtype.hasobject else array.reshape(-1).view(np.uint8)
