"""What a job needs of relays: their routes and the role of their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from mpidl.job.fill import fill_parameters
from mpidl.job.placed import PlacedJob
from mpidl.job.ready import ReadyJob
from mpidl.job.rehearsal import rehearse_encodings
from mpidl.parameters.ranges import Range, within
from mpidl.relays.residuals import RelayResiduals, saved_residuals
from mpidl.relays.routes import routes
from mpidl.relays.virtual import VirtualRelay
from mpidl.wire import Differences

if TYPE_CHECKING:
    from mpidl.relays.role import RelayRole
    from mpidl.relays.side_channel import Merging

__all__ = ["VirtualRelay", "make", "routes"]


def make(
    ready: ReadyJob, number: int, shards: Sequence[Range], relays: int, merging: Merging | None = None
) -> RelayRole:
    """Return relay `number` of a job with `relays` relays, which begins with the job's parameters.

    `merging` is for the side channel, if workers have one. Raise MpidlError if a file of the checkpoint
    can't be read.
    """
    # Plans and virtual clusters need no MPI.
    from mpidl.relays.role import RelayRole

    placed, job, statistics = ready.placed, ready.job, ready.placed.statistics
    parameters = np.empty(placed.layout.size, job.dtype)
    clocks = [fill_parameters(placed, part, parameters[slice(*part)]) for part in shards]
    rehearse_encodings(job)
    wire, wire_fetch = job.algorithm.encoding(), job.algorithm.fetch_encoding()
    residuals, copies = RelayResiduals(number, ready.scratch, wire, shards, job.dtype, statistics), []
    if wire is not None:
        residuals.load(_residual(placed, number, relays))
    if wire_fetch is not None:
        copies = [
            Differences(wire_fetch, parameters[slice(*part)], statistics=within(statistics, part)) for part in shards
        ]
    return RelayRole(number, parameters, np.array(clocks), residuals, copies, statistics, merging)


def _residual(placed: PlacedJob, number: int, relays: int) -> np.ndarray:
    """Return the residual that a relay begins with, shape (size,): its share of those of earlier relays.

    Another algorithm begins without.
    """
    job, layout = placed.job, placed.layout
    residual = np.zeros(layout.size, job.dtype)
    if job.checkpoint is not None and job.same_algorithm:
        for saved in islice(saved_residuals(job.checkpoint, layout), number, None, relays):
            residual += saved
    return residual
