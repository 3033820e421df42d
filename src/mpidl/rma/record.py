"""A record in a rank's memory, from which another process continues if this one dies."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpidl.rma.verbs import RemoteMemory

#: Bytes of the longest record of a job without workers, and what each worker adds.
LONGEST, PER_WORKER = 32 << 10, 16
#: Records that are kept in turn: a death while one is written leaves the one before.
SLOTS = 2
#: Numbers before a record: its ordinal from 1, its length and its checksum.
HEADER = 3


class Record:
    """The record in the region `record` of a rank's own memory, which no other process writes."""

    def __init__(self, window: RemoteMemory) -> None:
        self._window, slots = window, window.local("record").reshape(SLOTS, -1)
        self._headers = [slot[: HEADER * 8].view(np.int64) for slot in slots]
        self._contents = slots[:, HEADER * 8 :]

    def write(self, content: bytes) -> None:
        """Write a new record; one that is too long can't be read."""
        if len(content) > self._contents.shape[1]:
            content = b""
        number = 1 + max(int(header[0]) for header in self._headers)
        header, slot = self._headers[number % SLOTS], self._contents[number % SLOTS]
        slot[: len(content)] = np.frombuffer(content, np.uint8)
        header[1:] = len(content), zlib.crc32(content)
        self._window.sync()
        header[0] = number
        self._window.sync()

    def read(self) -> bytes | None:
        """Return the newest record that is whole; None if there is none."""
        self._window.sync()
        numbers = [int(header[0]) for header in self._headers]
        for place in sorted(range(SLOTS), key=lambda place: -numbers[place]):
            _, length, checksum = self._headers[place].tolist()
            content = self._contents[place, : max(0, length)].tobytes()
            if numbers[place] and zlib.crc32(content) == checksum:
                return content or None
        return None
