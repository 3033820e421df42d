"""What a shard does with a push: apply it, add it, gather several, drop it, make up for staleness."""

from mpidl.policies.add import Add
from mpidl.policies.apply import ApplyAtOnce
from mpidl.policies.assign import Assign
from mpidl.policies.compensate import Adag, DelayCompensated
from mpidl.policies.drop import DropStale
from mpidl.policies.first import FirstOfStep
from mpidl.policies.gather import Gather
from mpidl.policies.nesterov import DelayedNesterov
from mpidl.policies.policy import Policy, Push
from mpidl.policies.scales import Scale, inverse, inverse_plus_one, unscaled

__all__ = [
    "Adag",
    "Add",
    "ApplyAtOnce",
    "Assign",
    "DelayCompensated",
    "DelayedNesterov",
    "DropStale",
    "FirstOfStep",
    "Gather",
    "Policy",
    "Push",
    "Scale",
    "inverse",
    "inverse_plus_one",
    "unscaled",
]
