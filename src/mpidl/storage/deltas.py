"""Files of shards with all rows of tables, and between these some with only the rows that were used since.

The latter name the checkpoint with the former, and that file's seal.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from msgspec import Struct

from mpidl.parameters import Range
from mpidl.storage.checkpoints import steps
from mpidl.storage.files import BASE, BASE_SEAL, INTERIM, TABLES, shard_file
from mpidl.storage.integrity import recorded
from mpidl.storage.table_files import BY_ROW, USES
from mpidl.storage.writer import save_shard


class _Full(Struct):
    """A shard's last file with all rows: its seal, the shard's clock when it was copied, pushes before, files since."""

    seal: str
    copied: int
    pushes: int
    later: int = 0


class ShardFiles:
    """Writes the files of shards: of `full_every` in a row, the first one with all rows of the shard's tables.

    Interim checkpoints have all rows, and don't count. `finite` is that of `save_shard`.
    """

    def __init__(self, full_every: int = 1, finite: bool = False) -> None:
        self._every, self._finite = full_every, finite
        self._full: dict[int, _Full] = {}

    def save(self, directory: Path, number: int, range: Range, state: Mapping[str, np.ndarray], copied: int) -> None:
        """Write the file of a shard, as `save_shard`; its clock was `copied` when the copy with `state` was taken."""
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
                save_shard(directory, number, range, _since(state, full.copied), self._finite, base)
                return
        save_shard(directory, number, range, state, self._finite)
        # Not the copy's clock: that falls behind the shard's until all workers have made their marks.
        self._full[number] = _Full(str(recorded(directory / shard_file(number))), copied, pushes)


def _step_of(checkpoints: Path, number: int, seal: str) -> int | None:
    """Return the step of the checkpoint with a shard's file; None if it has been given up."""
    for step in reversed(steps(checkpoints)):
        with suppress(OSError):
            if str(recorded(checkpoints / str(step) / shard_file(number))) == seal:
                return step
    return None


def _since(state: Mapping[str, np.ndarray], clock: int) -> dict[str, np.ndarray]:
    """Return a shard's state with the rows that updates after a clock have used."""
    found = dict(state)
    for name, uses in state.items():
        if name.startswith(f"{TABLES}/") and name.endswith(f"/{USES}"):
            first = int(np.searchsorted(uses[:, 0], clock, "right"))
            found |= {array: state[array][first:] for array in (name.removesuffix(USES) + each for each in BY_ROW)}
    return found
