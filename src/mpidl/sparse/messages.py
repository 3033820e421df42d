"""Messages about rows: parts of several tables one after the other.

A part is the table's number and the number of ids, both int64, the ids, and in a push their gradients, filled up to a
multiple of 8 bytes. The answer to a request has the rows of all its ids, likewise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

WORD = 8


class Part(NamedTuple):
    """Some ids of a table, int64 (n,), and their rows or gradients, (n, dimension)."""

    table: int
    ids: np.ndarray
    values: np.ndarray


def padded(nbytes: int) -> int:
    """Return a number of bytes, filled up to a multiple of 8."""
    return -(-nbytes // WORD) * WORD


def grouped(parts: Sequence[Part], most: int) -> Iterator[list[Part]]:
    """Yield parts that fit into messages of `most` bytes each, with ids and values; larger ones are divided."""
    group: list[Part] = []
    room = most
    for table, ids, values in parts:
        start, row = 0, WORD + values.shape[1] * values.itemsize
        while start < ids.size:
            # Filling up may take up to a word less one byte.
            count = min(ids.size - start, (room - 3 * WORD + 1) // row)
            if count <= 0:
                yield group
                group, room = [], most
                continue
            own = slice(start, start + count)
            group.append(Part(table, ids[own], values[own]))
            room -= 2 * WORD + WORD * count + padded(count * (row - WORD))
            start += count
    if group:
        yield group


def answer_bytes(parts: Sequence[Part]) -> int:
    """Return the bytes of the answer to a request for parts."""
    return sum(padded(values.nbytes) for _, _, values in parts)


def message_bytes(parts: Sequence[Part], with_values: bool) -> int:
    """Return the bytes of a message."""
    return sum(2 * WORD + ids.nbytes for _, ids, _ in parts) + (answer_bytes(parts) if with_values else 0)


def pack(parts: Sequence[Part], with_values: bool) -> np.ndarray:
    """Return a message, uint8."""
    message, start = np.empty(message_bytes(parts, with_values), np.uint8), 0
    for table, ids, values in parts:
        message[start : start + 2 * WORD].view(np.int64)[:] = table, ids.size
        start += 2 * WORD
        message[start : start + ids.nbytes].view(np.int64)[:] = ids
        start += ids.nbytes
        if with_values:
            message[start : start + values.nbytes].view(values.dtype)[:] = values.reshape(-1)
            start += padded(values.nbytes)
    return message


def unpack(message: np.ndarray, dimensions: Sequence[int], dtype: np.dtype | None) -> Iterator[Part]:
    """Yield the parts of a message, on its memory; `dtype` is that of the values, None in a request."""
    start = 0
    while start < message.size:
        table, count = message[start : start + 2 * WORD].view(np.int64).tolist()
        start += 2 * WORD
        ids = message[start : start + WORD * count].view(np.int64)
        start += ids.nbytes
        if dtype is None:
            yield Part(table, ids, np.empty((count, 0)))
            continue
        nbytes = count * dimensions[table] * dtype.itemsize
        yield Part(table, ids, message[start : start + nbytes].view(dtype).reshape(count, dimensions[table]))
        start += padded(nbytes)
