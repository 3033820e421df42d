"""bfloat16: the upper half of a float32, rounded to nearest even."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.wire.wire import Wire


class Bf16(Wire):
    """Two bytes an element. What isn't finite stays so, and leaves no residual."""

    name = "bf16"

    def size(self, elements: int, dtype: Any) -> int:
        """See `Wire.size`."""
        return -(-2 * elements // 8) * 8

    def encode(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """See `Wire.encode`."""
        from mpidl.wire import kernels

        residual += values
        single = residual if residual.dtype == np.float32 else residual.astype(np.float32)
        kernels.encode_bf16(residual, single.view(np.uint32), out.view(np.uint16))

    def decode(self, data: np.ndarray, values: np.ndarray) -> None:
        """See `Wire.decode`."""
        from mpidl.wire import kernels

        if values.dtype == np.float32:
            kernels.widen_bf16(data.view(np.uint16), values.view(np.uint32))
        else:
            single = np.empty(values.size, np.float32)
            kernels.widen_bf16(data.view(np.uint16), single.view(np.uint32))
            values[:] = single
