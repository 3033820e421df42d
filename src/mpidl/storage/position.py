"""Where in the data and in the run a checkpoint was taken."""

from __future__ import annotations

from typing import Any, NamedTuple


class Position(NamedTuple):
    """Where in the data and in the run a checkpoint was taken.

    Attributes
    ----------
    step : int
        Number of minibatches that all replicas together have computed.
    samples : int
        Number of training samples used.
    epoch : float
        `samples` over the size of the training data.
    next_portion : int
        First portion that no replica has taken.
    unfinished : list of (int, int)
        Portions in work, each with the number of its batches that are done.
    state : dict, optional
        What a coordinator resumes from; None if the run has no coordinator or it has not iterated yet.
    """

    step: int
    samples: int
    epoch: float
    next_portion: int
    unfinished: list[tuple[int, int]]
    state: dict[str, Any] | None = None
