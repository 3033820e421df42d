"""Functions by which the virtual engine tells its caller what happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpidl.algorithms.coordinator_requests import Iteration


@dataclass(frozen=True)
class Hooks:
    """Functions that the virtual engine calls; by default they do nothing.

    Parameters
    ----------
    on_epoch : callable
        Called with an epoch's number (from 1) when the first portion beyond that epoch is taken.
    on_batch : callable
        Called without arguments before each batch or unit.
    on_event : callable
        Called as (kind, replica, **details) when a replica dies ("failure") or returns ("recovery").
    on_divergence : callable
        Called as (replica, portion, loss) when the loss of a batch is NaN or infinite; not if a coordinator judges it.
    on_iteration : callable
        Called with each `Iteration` of a coordinator; returns whether to stop.
    """

    on_epoch: Callable[[int], None] = lambda epoch: None
    on_batch: Callable[[], None] = lambda: None
    on_event: Callable[..., None] = lambda kind, replica, **details: None
    on_divergence: Callable[[int, int, float], None] = lambda replica, portion, loss: None
    on_iteration: Callable[[Iteration], bool] = lambda iteration: False
