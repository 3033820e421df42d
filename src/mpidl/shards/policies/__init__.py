"""Policies: how a shard handles a push, for example by applying it, gathering several, or dropping it."""

from mpidl.shards.policies.first import FirstOfStep
from mpidl.shards.policies.gather import DelayedNesterov, Gather
from mpidl.shards.policies.gradient_table import GradientTable
from mpidl.shards.policies.immediate import AddChange, ApplyAtOnce, Assign, DampedChange, DelayCompensated
from mpidl.shards.policies.policy import Policy, Scale, inverse, inverse_plus_one, unscaled
from mpidl.shards.policies.rescaled import RescaledRate
from mpidl.shards.state import PushHeader

__all__ = [
    "AddChange",
    "ApplyAtOnce",
    "Assign",
    "DampedChange",
    "DelayCompensated",
    "DelayedNesterov",
    "FirstOfStep",
    "Gather",
    "GradientTable",
    "Policy",
    "PushHeader",
    "RescaledRate",
    "Scale",
    "inverse",
    "inverse_plus_one",
    "unscaled",
]
