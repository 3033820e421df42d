"""Whether a job fits into this machine's memory: better told before it begins than found out when all is full."""

from __future__ import annotations

import os

from mpidl.errors import UsageError
from mpidl.job.placed import PlacedJob
from mpidl.nn.capabilities import activation_bytes

#: Bytes of what an engine keeps for a replica beside its parameters.
REPLICA = 10_000


def check_memory(placed: PlacedJob, vectors: float, replicas: int) -> None:
    """Check that the least that a job needs on this machine fits into its memory.

    Parameters
    ----------
    placed : PlacedJob
    vectors : float
        Number of vectors as long as the parameters that this machine holds.
    replicas : int
        Number of replicas on this machine.

    Raises
    ------
    UsageError
        It doesn't fit.
    """
    job, size = placed.job, placed.layout.size
    train, batch = job.dataset.train.samples, job.config.data.batch
    parts = {
        f"{size:,} parameters": int(vectors * size) * job.dtype.itemsize + replicas * REPLICA,
        f"batches of {batch:,}": (activation_bytes(job.original, min(batch, train)) or 0),
        f"{train:,} samples": 8 * train,  # their order in an epoch
    }
    needed, present = sum(parts.values()), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        most = max(parts, key=lambda part: parts[part])
        raise UsageError(f"{most} take {_gigabytes(parts[most])}, this machine has {_gigabytes(present)} of memory")


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:.3g} GB"
