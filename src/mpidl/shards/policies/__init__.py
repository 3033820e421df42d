"""Policies: what a shard does with a push, such as to apply it, gather several, or drop it."""

from mpidl.shards.policies.add import AddChange
from mpidl.shards.policies.apply import ApplyAtOnce
from mpidl.shards.policies.assign import Assign
from mpidl.shards.policies.compensate import DampedChange, DelayCompensated
from mpidl.shards.policies.drop import DropStale
from mpidl.shards.policies.first import FirstOfStep
from mpidl.shards.policies.gather import Gather
from mpidl.shards.policies.nesterov import DelayedNesterov
from mpidl.shards.policies.policy import Policy
from mpidl.shards.policies.scales import Scale, inverse, inverse_plus_one, unscaled
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
