"""Messages about rows: parts of several tables one after the other.

A part is the table's number and the number of ids, both int64, the ids, and in a push their gradients in a
`RowEncoding`. The answer to a request has the rows of each part, likewise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpidl.wire import Wire
from mpidl.wire.wire import padded, plain_bytes

WORD = 8


class TableRows(NamedTuple):
    """Some ids of a table, int64 (n,), and their rows or gradients, (n, dimension)."""

    table: int
    ids: np.ndarray
    values: np.ndarray


def grouped(parts: Sequence[TableRows], most: int) -> Iterator[list[TableRows]]:
    """Yield parts that fit into messages of `most` bytes each, with values as they are, and divide larger ones."""
    group: list[TableRows] = []
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
            group.append(TableRows(table, ids[own], values[own]))
            room -= 2 * WORD + WORD * count + padded(count * (row - WORD))
            start += count
    if group:
        yield group


class RowEncoding:
    """How rows travel: as they are or, by a wire format, with less precision.

    The error of an encoding is lost, without feedback: a worker may never see an id again.
    """

    def __init__(self, dtype: np.dtype, wire: Wire | None = None) -> None:
        self.dtype, self._wire, self.encoded = dtype, wire, wire is not None

    def nbytes(self, elements: int) -> int:
        """Return the bytes of a number of elements, a multiple of 8."""
        return (plain_bytes if self._wire is None else self._wire.size)(elements, self.dtype)

    def write(self, values: np.ndarray, data: np.ndarray) -> None:
        """Write contiguous values as bytes, uint8 of shape (nbytes,)."""
        if self._wire is None:
            data[: values.nbytes].view(self.dtype)[:] = values.reshape(-1)
        else:
            self._wire.encode(values.reshape(-1), np.zeros(values.size, self.dtype), data)

    def read(self, data: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Return the values of a shape that `write` has written, on the memory of the bytes unless they are encoded."""
        if self._wire is None:
            return data[: shape[0] * shape[1] * self.dtype.itemsize].view(self.dtype).reshape(shape)
        values = np.empty(shape, self.dtype)
        self.fill(values, data)
        return values

    def target(self, values: np.ndarray) -> np.ndarray:
        """Return memory for the bytes of contiguous `values`, uint8: their own unless they are encoded."""
        if self._wire is None:
            return values.reshape(-1).view(np.uint8)
        return np.empty(self.nbytes(values.size), np.uint8)

    def fill(self, values: np.ndarray, data: np.ndarray) -> None:
        """Set values by the bytes in their `target`."""
        if self._wire is not None:
            self._wire.decode(data, values.reshape(-1))

    def carried(self, values: np.ndarray) -> np.ndarray:
        """Return values as they arrive."""
        if self._wire is None:
            return values
        data, found = np.empty(self.nbytes(values.size), np.uint8), np.empty_like(values)
        self.write(values, data)
        self.fill(found, data)
        return found


class RowEncodings(NamedTuple):
    """The encodings of gradients that are pushed, and of rows that are fetched."""

    pushed: RowEncoding
    fetched: RowEncoding


def plain(dtype: np.dtype) -> RowEncodings:
    """Return the encodings that change no bits."""
    return RowEncodings(RowEncoding(dtype), RowEncoding(dtype))


def answer_bytes(parts: Sequence[TableRows], encoding: RowEncoding) -> int:
    """Return the bytes of the values of parts, such as the answer to a request for them."""
    return sum(encoding.nbytes(values.size) for _, _, values in parts)


def message_bytes(parts: Sequence[TableRows], encoding: RowEncoding | None) -> int:
    """Return the bytes of a message; a request has no values, and no encoding."""
    return sum(2 * WORD + ids.nbytes for _, ids, _ in parts) + (
        0 if encoding is None else answer_bytes(parts, encoding)
    )


def pack(parts: Sequence[TableRows], encoding: RowEncoding | None) -> np.ndarray:
    """Return a message, uint8; a request has no encoding."""
    message, start = np.empty(message_bytes(parts, encoding), np.uint8), 0
    for table, ids, values in parts:
        message[start : start + 2 * WORD].view(np.int64)[:] = table, ids.size
        start += 2 * WORD
        message[start : start + ids.nbytes].view(np.int64)[:] = ids
        start += ids.nbytes
        if encoding is not None:
            stop = start + encoding.nbytes(values.size)
            encoding.write(values, message[start:stop])
            start = stop
    return message


def unpack(message: np.ndarray, dimensions: Sequence[int], encoding: RowEncoding | None) -> Iterator[TableRows]:
    """Yield the parts of a message, on its memory where that is possible; those of a request have no values."""
    start = 0
    while start < message.size:
        table, count = message[start : start + 2 * WORD].view(np.int64).tolist()
        start += 2 * WORD
        ids = message[start : start + WORD * count].view(np.int64)
        start += ids.nbytes
        if encoding is None:
            yield TableRows(table, ids, np.empty((count, 0)))
            continue
        stop = start + encoding.nbytes(count * dimensions[table])
        yield TableRows(table, ids, encoding.read(message[start:stop], (count, dimensions[table])))
        start = stop
