"""What a transport must have room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpidl.parameters.ranges import Range
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.wire import Wire


@dataclass(frozen=True)
class Capacity:
    """What a transport must have room for; the same on all ranks.

    Attributes
    ----------
    shards : sequence of Range
        What each server holds or, without servers, each worker.
    dtype : dtype
        The parameters' dtype.
    wire : Wire, optional
        How pushes are encoded.
    evaluations : int
        Number of epochs that can be evaluated.
    figures : int
        Number of figures of an evaluation.
    sums : int
        Number of sums that a worker posts of its parts of an evaluation.
    units : int
        Most units of a coordinator's evaluation; 0 without a coordinator that drives the algorithm.
    shared_vectors : int
        Vectors of parameters that the workers share in their node's memory; 0 for none.
    chunk_bytes : int
        Bytes of a chunk; see `mpidl.transport.mailbox_geometry.MailboxGeometry`.
    """

    shards: Sequence[Range]
    dtype: Any
    wire: Wire | None = None
    evaluations: int = 1
    figures: int = 2
    sums: int = 3
    units: int = 0
    shared_vectors: int = 0
    chunk_bytes: int = CHUNK_BYTES
