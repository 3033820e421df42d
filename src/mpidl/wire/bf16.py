"""bfloat16: the upper half of a float32, rounded to nearest even."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.wire.wire import Wire, compiled


class Bf16(Wire):
    """Two bytes per element; float64 is first rounded to float32. Infinities and NaN are kept, without a residual."""

    name = "bf16"

    def size(self, elements: int, dtype: Any) -> int:
        return -(-2 * elements // 8) * 8

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        compiled(_encode)(values, residual, out[: 2 * values.size].view(np.uint16))

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        compiled(_decode)(data[: 2 * values.size].view(np.uint16), values)


def _encode(values: Any, residual: Any, halves: Any) -> None:
    real = values.dtype.type
    for i in range(values.size):
        # 0 + -0 is 0: adding a residual of zero would change the value -0.
        v = values[i] if residual[i] == 0 else values[i] + residual[i]
        bits = np.float32(v).view(np.uint32)
        # Rounding carries into the upper half, but must not turn a NaN into an infinity or a zero.
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        half = np.uint32(rounded if v == v else (bits >> np.uint32(16)) | np.uint32(0x40))
        left = v - np.uint32(half << np.uint32(16)).view(np.float32)
        halves[i] = half
        residual[i] = left if abs(left) < real(np.inf) else real(0)


def _decode(halves: Any, values: Any) -> None:
    for i in range(values.size):
        values[i] = np.uint32(np.uint32(halves[i]) << np.uint32(16)).view(np.float32)
