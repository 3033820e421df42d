"""The messages and numbers that ranks exchange, over any transport.

Running totals are posted whole, so that a rank may post at any time and nothing is lost if the coordinator looks less
often. Counters and the numbers of orders only grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from mpidl.shards.side_state import FIGURES
from mpidl.shards.staleness import BINS
from mpidl.storage.position import ReplicaPosition

#: A ticket beyond every run: taking it means that there are no more portions.
NO_MORE = 1 << 60
#: The most posts of status a second, and the most looks at orders, that one rank gets.
REQUESTS = 1000
#: The clock of a replica that has no more data: no replica waits for it.
STOPPED = int(np.iinfo(np.int64).max)


class State(IntEnum):
    """The progress of a rank."""

    WORKING = 1
    TRAINED = 2
    DONE = 3


class Doing(IntEnum):
    """What a worker that hasn't posted since does."""

    BATCH = 0
    EVALUATION = 1
    WAITING = 2  # for other ranks, for a while


class Phase(IntEnum):
    """The task of workers that have no more portions."""

    TRAIN = 0
    EVALUATE = 1
    EXIT = 2


class Control(IntEnum):
    """Numbers of the coordinator that workers read; it writes some of them to servers and other ranks."""

    TICKETS = 0  # portions taken so far
    PHASE = 1
    SIGNALS = 2  # ranks that a signal asked to stop
    ORDER = 3  # ordinal of the last order to save a checkpoint, from 1
    LAST = 4  # ordinal of the order after which all stop; 0 for none
    ROUND = 5  # in a deterministic run: that order, times `ROUNDS`, plus the pushes that are in its checkpoint
    TAKEN = 6  # a number below which all tickets have been taken
    COPIED = 7  # where workers share memory: ordinal of the last order for which a worker takes the copy
    BEGUN = 8  # in a deterministic run: most pushes that a worker may make before it looks for an order
    REDUCTIONS = 9  # times that rates have been reduced
    GIVEN_BACK = 10  # parts of portions that are handed out again so far
    NOTED = 11  # a number below which workers have noted all tickets, and may have forgotten them
    CUT = 12  # ordinal of the last order for which servers make the marks that are missing


class Taking(IntEnum):
    """What is remembered of each portion that a worker has taken."""

    TICKET = 0
    BATCHES = 1  # all that the worker has taken so far
    SAMPLES = 2


class GivenBack(IntEnum):
    """Numbers of the rest of a portion that is handed out again."""

    PORTION = 0
    FIRST = 1  # its first batch
    GIVER = 2  # number of the worker that had taken it
    MARKED = 3  # ordinal of the last order that this worker had marked
    CLAIMS = 4  # attempts to take it; the first has it
    TAKER = 5  # 1 + the worker that has it; 0 before it is known


#: Portions that are remembered of each worker, and most parts of portions that a run hands out again.
TAKINGS, GIVEN_BACK = 512, 1024
#: Numbers of a worker's row, a word and the last portions that it has taken, and of a part that is given back.
TAKINGS_ROW, GIVEN_BACK_WIDTH = 1 + TAKINGS * len(Taking), len(GivenBack)


#: More than the pushes of any worker.
ROUNDS = 1 << 40


#: The numbers of an `Order`: plain integers, which index lists faster than an enumeration's.
FIELDS = tuple(map(int, (Control.ORDER, Control.LAST, Control.PHASE, Control.REDUCTIONS, Control.CUT)))


class Order(NamedTuple):
    """An order of the coordinator to workers and servers.

    `number` is the ordinal of the last order to save a checkpoint, from 1; after the checkpoint of order `last`, if it
    isn't 0, all stop. Servers know the phases ``TRAIN`` and ``EXIT``. Rates have been reduced `reductions` times.
    Servers make the missing marks of order `cut`: see `mpidl.roles.served.ServedShard.save`.
    """

    number: int
    last: int
    phase: int
    reductions: int = 0
    cut: int = 0

    @classmethod
    def of(cls, control: np.ndarray) -> Order:
        """Return the order in the numbers of `Control`."""
        return cls(*map(control.tolist().__getitem__, FIELDS))


class ShardClock(IntEnum):
    """Numbers that a server shows beside its parameters."""

    CLOCK = 0  # updates applied
    CUT = 1  # ordinal of the last order that a worker has marked: later pushes are in no checkpoint ordered so far


#: A figure that a replica logs: its name, of a limited length, the sum of its values and their number; and how many.
LOGGED, MOST_LOGGED = np.dtype([("name", "S24"), ("sum", np.float64), ("count", np.int64)]), 8

WORKER_STATUS = np.dtype(
    [
        ("state", np.int64),
        ("doing", np.int64),  # a number of `Doing`
        ("samples", np.int64),
        ("batches", np.int64),
        ("loss", np.float64),  # sum of the batches' training losses, each times the batch's weight
        ("weight", np.float64),  # sum of these weights
        ("epoch", np.int64, (2,)),  # the last even and the last odd epoch that it has worked in, from 0
        ("epoch_loss", np.float64, (2,)),  # the sums of the losses in these epochs alone
        ("epoch_weight", np.float64, (2,)),
        ("pushes", np.int64),
        ("fetches", np.int64),
        ("bytes_pushed", np.int64),
        ("bytes_fetched", np.int64),
        ("bytes_behind", np.int64),  # of those fetched: the part that arrived behind a push that was still under way
        ("bytes_moved", np.int64),  # sent to other ranks of the same replica
        ("first_fetch", np.float64),  # seconds of the run's clock
        ("last_push", np.float64),
        ("evaluation_seconds", np.float64),
        ("waiting_seconds", np.float64),
        ("computing_seconds", np.float64),
        ("overhead_seconds", np.float64),
        ("computing_squares", np.float64),
        ("stopped", np.int64),  # gradients that were given up
        ("saved_seconds", np.float64),  # the rest of their mean duration
        ("fetching_seconds", np.float64),
        ("pushing_seconds", np.float64),
        ("rate", np.float64),  # learning rate of the replica's own steps; 0 if it makes none
        ("gradient_square", np.float64),  # squared norm of its part of a gradient; 0 before one was measured
        ("tested_samples", np.int64),  # samples of an evaluation whose sums this worker has posted
        ("tests", np.int64),  # number of its evaluations of the test data
        ("diverged", np.int64),  # 1 + the portion in which the loss was not finite, which ends the run; 0 for none
        ("memory", np.int64),  # bytes in memory of its process, measured now and then
        ("logged", LOGGED, (MOST_LOGGED,)),
    ]
)

SERVER_STATUS = np.dtype(
    [
        ("state", np.int64),
        ("pushes", np.int64),
        ("dropped", np.int64),
        ("busy_seconds", np.float64),
        ("rate", np.float64),  # the rule's learning rate for the last push; 0 before the first, and without a rule
        ("staleness_sum", np.float64),
        ("staleness_max", np.int64),
        ("staleness", np.int64, (BINS,)),
        *((name, np.int64) for name in FIGURES),  # of what pushes change beside the parameters
        ("queue", np.int64),  # pushes that wait in its mailboxes
        ("memory", np.int64),
    ]
)

#: Fields of a status that announce that others are final. No transport writes a whole row at once, so that these are
#: written after all others, one after the other in this order.
ANNOUNCING = ("tested_samples", "tests", "diverged", "state")


#: The evaluations of one worker that wait in the coordinator's memory at most: tiny ones take less than its looks.
EVALUATIONS = 8


class EpochEvaluation(NamedTuple):
    """To the coordinator: a worker's evaluation after an epoch.

    Attributes
    ----------
    epoch : int
        From 1.
    time : float
        Its start, in seconds of the run's clock.
    values : list of float
        The figures in the order of `mpidl.metrics.figures.Figures.names`.
    """

    epoch: int
    time: float
    values: list[float]


# A push, chunk by chunk.

#: Chunk numbers of the messages that announce the end of a worker's pushes, and a checkpoint that has those so far.
END, MARK = -1, -2
#: Of those that have a part of what the next push is to change beside the parameters, and that ask for a part of it.
SIDE_DATA, REQUEST = -3, -4


class ChunkHeader(IntEnum):
    """Numbers that travel with each chunk of a push."""

    PUSH = 0  # ordinal of the worker's push, from 0
    CHUNK = 1  # number of the chunk within the shard, or END, MARK, SIDE_DATA, REQUEST
    FETCHED = 2  # the shard's clock when the worker fetched
    COUNT = 3  # elements; bytes of what travels beside pushes
    FIRST = 4  # number of the first minibatch that the push was computed on; a mark's order
    LAST = 5  # of the last one; between pushes, that of the push before
    ENCODED = 6  # 0 if the values are as they are, 1 if they are encoded
    MARKED = 7  # ordinal of the last order that the worker has marked


class PushMessage(NamedTuple):
    """One chunk of a push, as a server receives it.

    Attributes
    ----------
    worker : int
    push : int
        Ordinal of the worker's push, from 0.
    chunk : int
        Number of the chunk within the shard, `END`, `MARK`, `SIDE_DATA` or `REQUEST`.
    fetched : int
        The shard's clock when the worker fetched the parameters of its gradient.
    values : array (count,)
        Valid until the chunk is released; bytes, as uint8, of what travels beside pushes.
    batches : (int, int)
        First and last minibatch that the push was computed on; the first is the order where this is a mark.
    """

    worker: int
    push: int
    chunk: int
    fetched: int
    values: np.ndarray
    batches: tuple[int, int]


class Row(IntEnum):
    """Numbers of a worker's row, where workers share memory; places follow, each a portion and its next batch.

    After these come places of its own data, if it has any: first those drawn and not used, each with its end.
    """

    UPDATES = 0  # its updates of the parameters
    CHANGING = 1  # whether it is changing the parameters or the row
    BATCHES = 2  # see `mpidl.storage.position.ReplicaPosition`
    SAMPLES = 3
    TICKETS = 4
    PLACES = 5  # number of places
    OWN = 6  # number of places of its own data


#: Most places in a row.
PLACES = 16


class Meeting(IntEnum):
    """The message of each worker to all others before a reduction."""

    GIVES = 0  # whether it gives a vector
    EPOCH = 1  # an epoch that is over and not evaluated yet, or 0
    ORDER = 2  # the first worker's: Control.ORDER
    LAST = 3  # and Control.LAST
    BATCH = 4  # the number of its last batch
    WEIGHT = 5  # the weight of its vector, the bits of a float64
    SECONDS = 6  # mean seconds of its gradients since the last message, likewise; 0 if there were none


# Checkpoints.


class ShardCut(NamedTuple):
    """The pushes of one worker that a shard's part of a checkpoint has.

    Attributes
    ----------
    pushes : int
        Their number; -1 if the shard has a push in part, or doesn't know.
    last : int
        Number of the last minibatch in them, -1 if there is none.
    marked : bool
        Whether the worker has made its mark itself.
    """

    pushes: int
    last: int
    marked: bool


class SavedFiles(Struct, frozen=True):
    """To the coordinator: a part of a checkpoint is on disk.

    Attributes
    ----------
    order : int
        Ordinal of the order.
    shards : sequence of int
        Numbers of the shards whose files are complete.
    replicas : dict of int to ReplicaPosition
        Positions of replicas, by their numbers; the files of those that keep vectors are complete.
    files : sequence of str
        Names of the files beside the shards'.
    taken : int or None
        A number below which tickets had been taken, if the order itself doesn't have it.
    partition : (int, int) or None
        A replica and the index of its rank that reports, if that isn't the first, which reports the position.
    intermediary : int or None
        The rank that reports, by its place in `mpidl.topology.roles.Roles.intermediaries`.
    cuts : (int, dict of int to ShardCut) or None
        A shard, and the pushes of each worker in its part, if all marks have been made.
    """

    order: int
    shards: Sequence[int] = ()
    replicas: Mapping[int, ReplicaPosition] = {}
    files: Sequence[str] = ()
    taken: int | None = None
    partition: tuple[int, int] | None = None
    intermediary: int | None = None
    cuts: tuple[int, Mapping[int, ShardCut]] | None = None
