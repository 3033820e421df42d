"""A worker's link."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.transport.interface.link import FollowerLink
from mpidl.transport.protocol import Order


class WorkerLink(FollowerLink, Protocol):
    """A worker's ways to the coordinator, to the servers and to the other workers.

    Attributes
    ----------
    shards : sequence of Range
        The shards that make up this worker's slice of the vector, counted from its beginning.
    relayed : bool
        Whether a relay of the node has mailboxes, parameters and clocks for this worker, in the servers' place.
    bytes_pushed : int
        Bytes of values delivered to all servers, or to the relay.
    bytes_fetched : int
        Bytes of values that have arrived as differences.
    encoded : collection of int
        Numbers of the shards, from 0, whose fetches are encoded.
    can_follow : bool
        Whether `follow_push` can be called: whether there is a server that it asks.
    peers : MPI.Intracomm or None
        In a job without servers, the workers that have the same slice.
    shared_vectors : list of array
        The parameters and the rule's state, where workers share memory.
    shared_rows : array (workers + 1, n) of int64
        There, a row for the gate and one for each worker; see `protocol.Row`.
    """

    @property
    def shards(self) -> Sequence[Range]: ...
    @property
    def relayed(self) -> bool: ...
    @property
    def bytes_pushed(self) -> int: ...
    @property
    def bytes_fetched(self) -> int: ...
    @property
    def encoded(self) -> Collection[int]: ...
    @property
    def can_follow(self) -> bool: ...
    @property
    def peers(self) -> Any: ...
    @property
    def shared_vectors(self) -> list[np.ndarray]: ...
    @property
    def shared_rows(self) -> np.ndarray: ...

    def ask_for_ticket(self) -> bool:
        """Begin to take a ticket, if that takes a message; return whether it does. `take_ticket` is to follow."""
        ...

    def take_ticket(self) -> int:
        """Take the next ticket for a portion, or the one that was asked for; each is given to one worker only."""
        ...

    def tickets_taken(self) -> int:
        """Return how many tickets have been taken."""
        ...

    def taken(self) -> int:
        """Return a number below which all tickets had been taken when what was returned last had been ordered.

        What was returned last is the result of `order` or `recent_order`.
        """
        ...

    def fence(self) -> None:
        """Let what this worker has written to shared memory be seen before it reads what others write."""

    def take_order(self, order: int) -> bool:
        """Return whether this worker is the one that takes the copy for an order, where workers share memory."""
        ...

    def set_clock(self, clock: int) -> None:
        """Show the other replicas this replica's clock, and wake them if it was the slowest."""

    def all_reached(self, clock: int) -> bool:
        """Return whether no replica's clock is less; to be called with the same clock until it is so."""
        ...

    def post_shard(self, status: np.ndarray, wake: bool = False, shard: int = 0) -> None:
        """Post the status of a shard that this worker holds, the first or another."""

    def post_sums(self, sums: np.ndarray) -> None:
        """Post the sums over this worker's part of an evaluation, of as many elements as the transport has room for.

        A status that is posted afterwards may announce them.
        """

    def post_evaluation(self, epoch: int, result: np.ndarray) -> None:
        """Post an evaluation after `epoch` (from 1), shape (1,) of `protocol.evaluation`."""

    def begin_round(self, pushes: int) -> tuple[Order, int | None]:
        """Say how many pushes this worker may make before it looks for an order again.

        Returns
        -------
        order : Order
        pushes : int or None
            How many of each worker's pushes are in that order's checkpoint; None while that is not decided.
        """
        ...

    def mark(self, order: int) -> bool:
        """Mark an order at all shards: later pushes are not in its checkpoint. False while one of them has no room."""
        ...

    def begin_push(self, fetched: Sequence[int], portions: tuple[int, int], zero_copy: bool = False) -> None:
        """Begin a push, with each shard's clock at the last fetch and the first and last portion in its headers.

        With `zero_copy`, the vector doesn't change before the next fetch has finished.
        """

    def send_push(self, vector: Any, start: int = 0) -> bool:
        """Send the chunks of `vector` that don't begin before `start`, as far as the shards have room for them.

        Returns
        -------
        bool
            Whether all of the push is delivered.
        """
        ...

    def end_pushes(self) -> bool:
        """Tell the shards that no push follows; False while one of them has no room."""
        ...

    def applied(self) -> bool:
        """Return whether the shards have applied all that was pushed."""
        ...

    def all_newer(self, clocks: np.ndarray) -> bool:
        """Return whether all shards have been updated since their `clocks` were read.

        To be called with the same clocks until they have.
        """
        ...

    def start_fetch(self, parameters: Any, clocks: np.ndarray, without: Sequence[int] = ()) -> None:
        """Start reading all shards but some into a vector, and before each its `protocol.ShardClock` into `clocks`.

        `clocks` is an int64 array (shards, len(ShardClock)). Shards that are `encoded` are not read: their servers are
        asked for differences.
        """

    def finish_fetch(self) -> None:
        """Wait until a started fetch has arrived."""

    def fetch_present(self, parameters: Any) -> None:
        """Read all shards from the servers themselves, as they are now and not encoded, and wait for them."""

    def follow_push(self, parameters: Any, clocks: np.ndarray) -> Sequence[int]:
        """Start a fetch behind the push that was sent last, of each part as soon as the push has been applied to it.

        Only some servers can be asked for that; returns the numbers of their shards. Where fetches are encoded, the
        parameters are left alone, and the servers asked for differences.
        """
        ...

    def finish_following(self) -> None:
        """Wait until what `follow_push` started has arrived.

        The push itself is in the parameters, and counts in their clocks, as one update.
        """

    def take_differences(self) -> bool:
        """Bring this worker's copies of encoded shards up to date by what has been answered; True if all has been."""
        ...

    def notice_changed(self) -> bool:
        """Return whether the coordinator has shown something new, each time once; the notice is to be read then."""
        ...

    def read_notice(self, notice: np.ndarray) -> None:
        """Read what the coordinator shows to workers of its evaluations, int64 (NOTICE,)."""

    def take_piece(self) -> int:
        """Take the next ticket for a piece of the evaluated data."""
        ...

    def take_copy(self, evaluation: int, unit: int) -> bool:
        """Return whether this worker is the first to take a unit of an evaluation for the second time.

        It may be True in an evaluation that is over, and changes nothing then for those that follow.
        """
        ...

    def read_done(self, done: np.ndarray) -> None:
        """Read which units all servers have accrued, into a uint8 array (units,)."""
