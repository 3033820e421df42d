"""A server's link, and its inbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from mpidl.transport.interface.link import FollowerLink
from mpidl.transport.protocol import Message


class Inbox(Protocol):
    """A server's end of all workers' mailboxes."""

    def waiting(self) -> list[int]:
        """Return the workers that have chunks waiting; nearly free if nothing has arrived."""
        ...

    def pending(self, worker: int) -> int:
        """Return how many chunks of `worker` are waiting."""
        ...

    def taken(self, worker: int) -> int:
        """Return how many chunks of `worker` have been released."""
        ...

    def head(self, worker: int) -> Message:
        """Return the oldest waiting chunk of `worker`, which must have one."""
        ...

    def release(self, worker: int) -> None:
        """Free the slot of the oldest waiting chunk of `worker`, which has been applied."""

    def acknowledge(self, worker: int) -> None:
        """Show `worker` what has been released."""

    def drain(self, worker: int, most: int) -> Iterator[Message]:
        """Yield up to `most` waiting chunks, each released after use and all acknowledged at the end."""
        ...


class ServerLink(FollowerLink, Protocol):
    """A server's ways to the workers and to the coordinator, for one of its shards.

    Status, clock, inbox and memory are the shard's; all else is the same for all shards of the server.

    Attributes
    ----------
    parameters : array
        Memory in which workers fetch the shard.
    inbox : Inbox
    """

    @property
    def parameters(self) -> np.ndarray: ...
    @property
    def inbox(self) -> Inbox: ...

    def show_clock(self, clock: int) -> None:
        """Show workers the number of updates that have been applied."""

    def show_cut(self, order: int) -> None:
        """Show workers that pushes from now on may not be in the checkpoint of an order."""

    def answer_fetches(self) -> bool:
        """Answer the workers that have asked for differences; return whether there was one."""
        ...

    def wake_workers(self) -> None:
        """Wake all workers, which may be waiting for an update."""

    def next_call(self) -> Any | None:
        """Return the coordinator's next call, or None."""
        ...

    def answer(self, message: Any) -> None:
        """Answer the last call."""

    def notify(self, message: Any) -> None:
        """Tell the coordinator something that it has not asked for."""

    def expect_units(self, count: int) -> None:
        """Show workers that none of `count` units has been accrued."""

    def show_done(self, unit: int) -> None:
        """Show workers that a unit has been accrued."""
