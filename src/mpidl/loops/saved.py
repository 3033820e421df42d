"""The state of a loop as an array of bytes, for checkpoints."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from mpidl.errors import kind_of
from mpidl.loops.switch import LoopError


def encoded(state: dict[str, Any]) -> np.ndarray:
    """Return the state as bytes, uint8 (n,); LoopError for a value that can't be saved."""
    return np.frombuffer(json.dumps(_plain(state, "state")).encode(), np.uint8)


def decoded(content: np.ndarray) -> dict[str, Any]:
    """Return the inverse of `encoded`; tensors have become arrays."""
    found: dict[str, Any] = _restored(json.loads(content.tobytes()))
    return found


def _plain(value: Any, where: str) -> Any:
    """Return a value of what JSON knows; all that it would change is marked by its kind."""
    if value is None or isinstance(value, str | bool | int | float):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise LoopError(f"replica.{where}: a key is {kind_of(key)}, expected a text")
        return {"dict": {key: _plain(each, f"{where}[{key!r}]") for key, each in value.items()}}
    if isinstance(value, tuple | list):
        items = [_plain(each, f"{where}[{number}]") for number, each in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.dtype.kind in "biufcSU":
            data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
            return {"array": [array.dtype.str, list(array.shape), data]}
    raise LoopError(
        f"replica.{where}: found {kind_of(value)}, expected numbers, texts, arrays, and lists and dicts of them"
    )


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {key: _restored(each) for key, each in content.items()}
    if kind == "tuple":
        return tuple(_restored(each) for each in content)
    if kind == "bytes":
        return base64.b64decode(content)
    dtype, shape, data = content
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
