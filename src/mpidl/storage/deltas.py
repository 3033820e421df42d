"""Files of shards with all rows of tables, and between these some with only the rows that were used since.

The latter name the checkpoint with the former, and that file's seal.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpidl.parameters import Range
from mpidl.storage.checkpoints import steps
from mpidl.storage.files import BASE, BASE_SEAL, INTERIM, TABLES, shard_file
from mpidl.storage.integrity import recorded
from mpidl.storage.table_files import BY_ROW, COUNTS, USES
from mpidl.storage.writer import save_shard


@dataclass
class _Full:
    """A shard's last file with all rows: its seal, the last update of each table, pushes before, files since."""

    seal: str
    updates: Mapping[str, int]
    pushes: int
    later: int = 0


class ShardFiles:
    """Writes the files of shards: of `full_every` in a row, the first one with all rows of the shard's tables.

    Interim checkpoints have all rows, and don't count. `finite` is that of `save_shard`.
    """

    def __init__(self, full_every: int = 1, finite: bool = False) -> None:
        self._every, self._finite = full_every, finite
        self._full: dict[int, _Full] = {}

    def save(self, directory: Path, number: int, range: Range, state: Mapping[str, np.ndarray]) -> None:
        """Write the file of a shard, as `save_shard`."""
        if self._every == 1 or directory.suffix == INTERIM:
            save_shard(directory, number, range, state, self._finite)
            return
        full, pushes = self._full.get(number), int(state["pushes"])
        # Without a push since, the checkpoint has the same step, and takes the place of the one with that file.
        if full is not None and full.later + 1 < self._every and full.pushes < pushes:
            step = _step_of(directory.parent, number, full.seal)
            if step is not None:
                full.later += 1
                base = {BASE: step, BASE_SEAL: full.seal}
                save_shard(directory, number, range, _since(state, full.updates), self._finite, base)
                return
        save_shard(directory, number, range, state, self._finite)
        updates = {name: int(values[0]) for name, values in state.items() if _is_of_table(name, COUNTS)}
        self._full[number] = _Full(str(recorded(directory / shard_file(number))), updates, pushes)


def _step_of(checkpoints: Path, number: int, seal: str) -> int | None:
    """Return the step of the checkpoint with a shard's file; None if it has been given up."""
    for step in reversed(steps(checkpoints)):
        with suppress(OSError):
            if str(recorded(checkpoints / str(step) / shard_file(number))) == seal:
                return step
    return None


def _since(state: Mapping[str, np.ndarray], updates: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return a shard's state with the rows that were used later than by an update of each table."""
    found = dict(state)
    for name, update in updates.items():
        table = name.removesuffix(COUNTS)
        first = int(np.searchsorted(state[table + USES][:, 0], update, "right"))
        found |= {table + array: state[table + array][first:] for array in BY_ROW}
    return found


def _is_of_table(name: str, array: str) -> bool:
    return name.startswith(f"{TABLES}/") and name.endswith(f"/{array}")
