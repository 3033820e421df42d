"""The messages and numbers by which a coordinator drives an algorithm, such as Sandblaster L-BFGS."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from msgspec import Struct

from mpidl.algorithms.coordination import SEGMENTS, BatchSegment

#: Tickets of evaluation e are e * TICKETS + 0, 1, 2, ...; so are those of pieces of the test data.
TICKETS = 1 << 32
#: Added to a unit's number if another worker had taken that unit before. The header of a push has evaluation and unit
#: in the place of the clock, and the bits of two float64, the sums of losses and of weights, in that of the batches.
COPY = 1 << 31


class Notice(IntEnum):
    """Numbers that the coordinator shows to workers; each segment's first portion and count follow."""

    NUMBER = 0  # the evaluation that workers may take units of, from 1
    TEST = 1  # number of evaluations of the test data so far, the present one included
    OVER = 2  # whether training is over
    SEGMENTS = 3  # number of segments
    PIECE = 4  # ticket of the next piece of the test data
    NEWS = 5  # number of changes of the first three
    TASK = 6  # what replicas compute of the units


class Tag(IntEnum):
    """Kinds of messages between the coordinator and other ranks."""

    CALL = 1
    ANSWER = 2
    NOTICE = 3
    SAVED = 4
    VALUES = 5


#: Number of numbers in a notice.
NOTICE = len(Notice) + 2 * SEGMENTS


class Begin(Struct, frozen=True):
    """Coordinator to servers: expect the units of an evaluation. Answer: None."""

    evaluation: int
    segments: tuple[BatchSegment, ...]
    unit: int


class Obeyed(Struct, frozen=True):
    """Coordinator to servers. Answer: ordinal of the last order to save that was obeyed."""


class Complete(Struct, frozen=True):
    """Server to coordinator: all units of an evaluation have been accrued, `won` of them from their second copy.

    `losses` and `weights` have the shape (units,).
    """

    evaluation: int
    losses: np.ndarray
    weights: np.ndarray
    won: int
