"""Parameters that the workers of one node update in shared memory (Hogwild)."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.rma.counters import Counter
from mpidl.rma.shared_state import SharedState
from mpidl.transport.protocol import Control


class SharedMemory:
    """A worker's access to the parameters and the rule's state, `vectors`, that all workers of its node map.

    `rows`, int64, has a row for the gate and one for each worker; see `protocol.Row`.
    """

    def __init__(self, shared: SharedState) -> None:
        self._window = shared.window
        self.vectors: list[np.ndarray] = shared.shared_vectors
        self.rows: Any = shared.shared_rows
        self._copied = Counter(shared.window, shared.roles.coordinator, "control", Control.COPIED)
        self._order = 0

    def sync(self) -> None:
        """Make what this worker has written visible before it reads what others write."""
        self._window.sync()

    def take_order(self, order: int) -> bool:
        """Return whether this worker is the one that copies the memory for an order."""
        if self._order < order:
            if self._copied.raise_to(order) >= order:
                return False
            self._order = order
        return self._order == order
