"""Policies: how a shard handles a push, for example by applying it, gathering several, or dropping it."""

from mpidl.shards.policies.first import FirstOfStep
from mpidl.shards.policies.gather import DelayedNesterov, Gather
from mpidl.shards.policies.immediate import AddChange, ApplyAtOnce, Assign, DampedChange, DelayCompensated, DropStale
from mpidl.shards.policies.policy import Policy, Scale, inverse, inverse_plus_one, unscaled
from mpidl.shards.state import PushHeader

__all__ = [
    "AddChange",
    "ApplyAtOnce",
    "Assign",
    "DampedChange",
    "DelayCompensated",
    "DelayedNesterov",
    "DropStale",
    "FirstOfStep",
    "Gather",
    "Policy",
    "PushHeader",
    "Scale",
    "inverse",
    "inverse_plus_one",
    "unscaled",
]
