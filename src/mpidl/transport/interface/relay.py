"""A relay's link, its workers' mailboxes, and its own rings at the servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.transport.interface.link import FollowerLink
from mpidl.transport.interface.server import Inbox


class RelayInbox(Inbox, Protocol):
    """A relay's end of its workers' mailboxes for one shard."""

    def show_applied(self, worker: int, count: int) -> None:
        """Show `worker` how many of its chunks the shard's server has applied, and wake it."""


class Ring(Protocol):
    """One of a relay's rings in the mailboxes of all servers.

    Attributes
    ----------
    bytes : int
        Bytes of values delivered.
    """

    @property
    def bytes(self) -> int: ...

    def begin(self, fetched: Sequence[int], portions: tuple[int, int]) -> None:
        """Begin a push; see `WorkerLink.begin_push`."""

    def send(self, vector: Any) -> bool:
        """Send as many chunks as there is room for; see `WorkerLink.send_push`."""
        ...

    def mark(self, order: int) -> bool:
        """Mark an order behind the pushes of this ring; False while a shard has no room."""
        ...

    def end(self) -> bool:
        """Tell the shards that no push follows in this ring; False while one of them has no room."""
        ...

    def applied(self) -> bool:
        """Return whether the shards have applied all that was sent in this ring."""
        ...


class RelayLink(FollowerLink, Protocol):
    """A relay's ways to the workers of its node, to the servers and to the coordinator.

    Attributes
    ----------
    shards : sequence of Range
    chunks : sequence of int
        Elements of a chunk in the workers' mailboxes, for each shard.
    replicas : int
        Number of replicas whose ranks are its workers. Each has a mailbox for each shard.
    inboxes : sequence of RelayInbox
        The workers' mailboxes for each shard.
    rings : sequence of Ring
        Two.
    bytes_fetched : int
        Bytes of values that have arrived from servers.
    """

    @property
    def shards(self) -> Sequence[Range]: ...
    @property
    def chunks(self) -> Sequence[int]: ...
    @property
    def replicas(self) -> int: ...
    @property
    def inboxes(self) -> Sequence[RelayInbox]: ...
    @property
    def rings(self) -> Sequence[Ring]: ...
    @property
    def bytes_fetched(self) -> int: ...

    def post(self, status: np.ndarray, wake: bool = False) -> None:
        """Post the relay's status, and before it what its workers have posted to it: their status and their sums."""

    def start_fetch(self, parameters: np.ndarray, clocks: np.ndarray) -> None:
        """Read all shards into a vector and, before each, its clock, as `WorkerLink.start_fetch` does.

        Where fetches are encoded, servers are asked for differences: those bring the link's copies up to date.
        """

    def finish_fetch(self, clocks: np.ndarray) -> bool:
        """Return whether all that was asked for has arrived.

        What a server shows of a checkpoint's cut is read after its parameters: they may have changed since the cut.
        """
        ...

    def show(self, parameters: np.ndarray, clocks: np.ndarray) -> None:
        """Show the workers what has been fetched."""
