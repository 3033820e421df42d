"""Policies: how a shard handles a push, for example by applying it, gathering several, or dropping it."""

from mpidl.shards.policies.gather import AccumulateGradients, DelayedNesterov, FirstOfStep
from mpidl.shards.policies.gradient_table import GradientTable
from mpidl.shards.policies.immediate import (
    AddChange,
    ApplyAtOnce,
    Assign,
    DampedChange,
    DecreasingRate,
    DelayCompensated,
    RescaledRate,
)
from mpidl.shards.policies.policy import Policy, Scale, drop_above, inverse, inverse_plus_one, unscaled
from mpidl.shards.state import PushHeader

__all__ = [
    "AccumulateGradients",
    "AddChange",
    "ApplyAtOnce",
    "Assign",
    "DampedChange",
    "DecreasingRate",
    "DelayCompensated",
    "DelayedNesterov",
    "FirstOfStep",
    "GradientTable",
    "Policy",
    "PushHeader",
    "RescaledRate",
    "Scale",
    "drop_above",
    "inverse",
    "inverse_plus_one",
    "unscaled",
]
