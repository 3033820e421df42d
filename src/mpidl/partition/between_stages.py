"""Arrays of micro-batches on their way from one rank to another, which learns their shape with the first one."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.partition.group import Group, Message

#: Most axes of an array.
AXES = 15


class Sender:
    """Sends arrays (n, *shape), all of one shape for a sample and of one dtype, to another rank.

    Parameters
    ----------
    group : Group
    to : int
        The other rank.
    tag : int
        Tag of the arrays; the message with the first one's shape has the next.
    """

    def __init__(self, group: Group, to: int, tag: int) -> None:
        self._group, self._to, self._tag = group, to, tag
        self._shape: Message | None = None
        self._messages: dict[tuple[int, int], tuple[np.ndarray, Message]] = {}

    def send(self, array: np.ndarray, slot: int = 0) -> None:
        """Begin to send a copy of an array; wait first until the last one of this slot and length is on its way."""
        if self._shape is None:
            header = np.array([array.ndim, *array.shape, *[0] * (AXES - array.ndim)])
            self._shape = self._group.send(self._to, header, self._tag + 1)
            self._shape.start()
        key = len(array), slot
        if key not in self._messages:
            memory = np.empty_like(array, order="C")
            self._messages[key] = memory, self._group.send(self._to, memory, self._tag)
        memory, message = self._messages[key]
        message.wait()
        np.copyto(memory, array)
        message.start()

    def free(self) -> None:
        """Wait until all is on its way, and give back what the messages need."""
        for message in (self._shape, *(message for _, message in self._messages.values())):
            if message is not None:
                message.wait()
                message.free()


class Receiver:
    """Receives what a `Sender` sends.

    Parameters
    ----------
    group : Group
    source : int
        The other rank.
    tag : int
    dtype
        The arrays' dtype.
    """

    def __init__(self, group: Group, source: int, tag: int, dtype: Any) -> None:
        self._group, self._source, self._tag, self._dtype = group, source, tag, dtype
        self._shape: tuple[int, ...] | None = None
        self._messages: dict[tuple[int, int], tuple[np.ndarray, Message]] = {}

    def receive(self, samples: int, slot: int = 0) -> np.ndarray:
        """Return the next array (samples, *shape), which stays as it is until the next one of this slot."""
        if self._shape is None:
            header = np.empty(AXES + 1, int)
            message = self._group.receive(self._source, header, self._tag + 1)
            message.start()
            message.wait()
            message.free()
            self._shape = tuple(header[2 : 1 + header[0]].tolist())
        key = samples, slot
        if key not in self._messages:
            memory = np.empty((samples, *self._shape), self._dtype)
            self._messages[key] = memory, self._group.receive(self._source, memory, self._tag)
        memory, message = self._messages[key]
        message.start()
        message.wait()
        return memory

    def free(self) -> None:
        """Give back what the messages need."""
        for _, message in self._messages.values():
            message.free()
