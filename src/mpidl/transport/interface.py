"""The interface of a transport: the verbs by which roles and engines reach other ranks.

A transport is made for a set of ranks and freed as a whole. Each role takes its link from it and keeps its own state
elsewhere, so that it can be bound anew to another transport. `mpidl.rma.transport` is the one over MPI windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from mpidl.algorithms.coordinator_requests import Segment
from mpidl.parameters.ranges import Range
from mpidl.topology.roles import Roles
from mpidl.transport.protocol import Message, Order, Phase, Saved
from mpidl.wire import ErrorFeedback


class Backoff(Protocol):
    """Waits between two looks at what other ranks change, while MPI goes on making progress."""

    def reset(self) -> None:
        """Say that there was work: the next pauses are short."""

    def progress(self) -> bool:
        """Let MPI make progress without waiting; return whether a message has arrived that nobody has received."""
        ...

    def pause(self) -> bool:
        """Wait a moment. Return whether it slept the whole time and nobody woke it."""
        ...


class Inbox(Protocol):
    """A server's end of all workers' mailboxes."""

    def waiting(self) -> list[int]:
        """Return the workers that have chunks waiting; nearly free if nothing has arrived."""
        ...

    def pending(self, worker: int) -> int:
        """Return how many chunks of `worker` are waiting."""
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


class Link(Protocol):
    """What every role's link has.

    Attributes
    ----------
    crowded : bool
        Whether the ranks of this node outnumber the cores that they may run on.
    """

    @property
    def crowded(self) -> bool: ...

    def backoff(self, longest: float | None = None) -> Backoff:
        """Return a back-off for this rank that sleeps up to `longest` seconds where every rank can wake it."""
        ...


class FollowerLink(Link, Protocol):
    """What the links of workers and servers have: they follow the coordinator."""

    def signal(self) -> None:
        """Tell the coordinator that a signal asked this rank to stop."""

    def order(self) -> Order:
        """Return what the coordinator has ordered."""
        ...

    def post(self, status: np.ndarray, wake: bool = False) -> None:
        """Post this rank's status, shape (1,); `wake` makes the coordinator look at once."""

    def report_saved(self, saved: Saved) -> None:
        """Tell the coordinator that a part of a checkpoint is on disk."""


class WorkerLink(FollowerLink, Protocol):
    """A worker's ways to the coordinator, to the servers and to the other workers.

    Attributes
    ----------
    shards : sequence of Range
    bytes_pushed : int
        Bytes of values delivered to all servers.
    peers : MPI.Intracomm or None
        The workers of a job without servers.
    shared_vectors : list of array
        The parameters and the rule's state, where workers share memory.
    shared_rows : array (workers + 1, n) of int64
        There, a row for the gate and one for each worker; see `protocol.Row`.
    """

    @property
    def shards(self) -> Sequence[Range]: ...
    @property
    def bytes_pushed(self) -> int: ...
    @property
    def peers(self) -> Any: ...
    @property
    def shared_vectors(self) -> list[np.ndarray]: ...
    @property
    def shared_rows(self) -> np.ndarray: ...

    def take_ticket(self) -> int:
        """Take the next ticket for a portion; each is given to one worker only."""
        ...

    def tickets_taken(self) -> int:
        """Return how many tickets have been taken."""
        ...

    def taken(self) -> int:
        """Return a number below which all tickets had been taken when `order` was called last."""
        ...

    def fence(self) -> None:
        """Let what this worker has written to shared memory be seen before it reads what others write."""

    def take_order(self, order: int) -> bool:
        """Return whether this worker is the one that takes the copy for an order, where workers share memory."""
        ...

    def set_clock(self, clock: int) -> None:
        """Show the other replicas this replica's clock, and wake them if it was the slowest."""

    def slowest_clock(self) -> int:
        """Return the least of all replicas' clocks."""
        ...

    def post_shard(self, status: np.ndarray, wake: bool = False) -> None:
        """Post the status of the shard that this worker holds."""

    def post_evaluation(self, epoch: int, result: np.ndarray) -> None:
        """Post an evaluation after `epoch` (from 1), shape (1,) of `protocol.EVALUATION`."""

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
        """Mark an order at all servers: later pushes are not in its checkpoint. False while one of them has no room."""
        ...

    def begin_push(self, fetched: Sequence[int], portions: tuple[int, int]) -> None:
        """Begin a push, with each shard's clock at the last fetch and the first and last portion in its headers."""

    def send_push(self, vector: Any) -> bool:
        """Send as many chunks of `vector` as the servers have room for; return whether all are delivered."""
        ...

    def end_pushes(self) -> bool:
        """Tell the servers that no push follows; False while one of them has no room."""
        ...

    def applied(self) -> bool:
        """Return whether the servers have applied all that was pushed."""
        ...

    def read_clocks(self, clocks: np.ndarray) -> None:
        """Read the `protocol.ShardClock` of every shard into an int64 array (servers, len(ShardClock))."""

    def start_fetch(self, parameters: Any) -> None:
        """Start reading all shards into a vector."""

    def finish_fetch(self) -> None:
        """Wait until a started fetch has arrived."""

    def read_notice(self, notice: np.ndarray) -> None:
        """Read what the coordinator shows to workers of its evaluations, int64 (NOTICE,)."""

    def take_piece(self) -> int:
        """Take the next ticket for a piece of the test data."""
        ...

    def take_copy(self, evaluation: int, unit: int) -> bool:
        """Return whether this worker is the first to take a unit of an evaluation for the second time.

        It may be True in an evaluation that is over, and changes nothing then for those that follow.
        """
        ...

    def read_done(self, done: np.ndarray) -> None:
        """Read which units all servers have accrued, into a uint8 array (units,)."""


class ServerLink(FollowerLink, Protocol):
    """A server's ways to the workers and to the coordinator.

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

    def show_clock(self, clock: int, received: int) -> None:
        """Show workers how many updates have been applied and how many chunks received."""

    def show_cut(self, order: int) -> None:
        """Show workers that pushes from now on may not be in the checkpoint of an order."""

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


class CoordinatorLink(Link, Protocol):
    """The coordinator's ways to all other ranks.

    Attributes
    ----------
    workers, servers : structured arrays
        The status that each rank posted last, of `protocol.WORKER_STATUS` and `SERVER_STATUS`; live after `look`.
    """

    @property
    def workers(self) -> np.ndarray: ...
    @property
    def servers(self) -> np.ndarray: ...

    def look(self) -> None:
        """Let what other ranks posted become visible."""

    def evaluations(self) -> Iterator[tuple[int, Any]]:
        """Yield the evaluations posted since the last call: the epoch, from 1, and its record."""
        ...

    def signals(self) -> int:
        """Return how many ranks a signal asked to stop."""
        ...

    def tickets_taken(self) -> int:
        """Return how many tickets for portions have been taken."""
        ...

    def show_taken(self, taken: int) -> None:
        """Show workers that all tickets below a number have been taken."""

    def set_tickets(self, taken: int) -> int:
        """Let tickets go on from a number, and return the number before."""
        ...

    def order_save(self, number: int, last: int) -> None:
        """Order a checkpoint; orders are numbered from 1, and all stop after order `last` unless that is 0."""

    def decide_round(self, number: int) -> None:
        """Decide how many pushes of each worker are in the checkpoint of an order, where they begin rounds."""

    def saved(self) -> list[Saved]:
        """Return what other ranks have reported to be on disk since the last call."""
        ...

    def set_phase(self, phase: Phase) -> None:
        """Tell all ranks what to do that have no more portions."""

    def call(self, message: Any) -> None:
        """Send a message to all servers."""

    def answers(self) -> list[Any] | None:
        """Return each server's answer to the last call, or None while one is missing."""
        ...

    def notices(self) -> list[tuple[int, Any]]:
        """Return what servers said without being asked: pairs of a server's number and the message."""
        ...

    def show_evaluation(self, number: int, segments: Sequence[Segment]) -> None:
        """Let workers take the units of an evaluation."""

    def units_taken(self, number: int) -> int:
        """Return how many tickets for units of evaluation `number` have been taken."""
        ...

    def copies_taken(self, number: int) -> int:
        """Return how many units of evaluation `number` have been taken a second time."""
        ...

    def show_test(self, number: int) -> None:
        """Let workers evaluate the test data; `number` counts the times from 1."""

    def show_over(self) -> None:
        """Tell workers that training is over."""


class Transport(Protocol):
    """Everything that a set of ranks shares. Creation and `free` are collective; it is a context manager.

    Attributes
    ----------
    rank, size : int
    roles : Roles
    workers : list of int
        Rank of each worker.
    shards : sequence of Range
    chunks : list of int
        Elements of a chunk, for each shard.
    crowded : bool
        Whether the ranks of this node outnumber the cores that they may run on.
    """

    rank: int
    size: int
    roles: Roles
    workers: list[int]
    crowded: bool

    @property
    def shards(self) -> Sequence[Range]: ...
    @property
    def chunks(self) -> list[int]: ...

    def worker(self, number: int, feedback: Sequence[ErrorFeedback] = ()) -> WorkerLink:
        """Return worker `number`'s link; `feedback` has what its wire format has left out, for each server."""
        ...

    def server(self, number: int) -> ServerLink:
        """Return server `number`'s link."""
        ...

    def coordinator(self) -> CoordinatorLink:
        """Return the coordinator's link."""
        ...

    def free(self) -> None:
        """Give everything back; what is asked of it afterwards raises RuntimeError."""
