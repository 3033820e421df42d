"""What a shard does with a push: apply it, add it, gather several, and how it makes up for staleness."""

from mpidl.policies.add import Add
from mpidl.policies.apply import ApplyAtOnce
from mpidl.policies.compensate import Adag, DelayCompensated
from mpidl.policies.drop import DropStale
from mpidl.policies.gather import Gather
from mpidl.policies.policy import Policy, Push
from mpidl.policies.scales import Scale, inverse, inverse_plus_one, unscaled

__all__ = [
    "Adag",
    "Add",
    "ApplyAtOnce",
    "DelayCompensated",
    "DropStale",
    "Gather",
    "Policy",
    "Push",
    "Scale",
    "inverse",
    "inverse_plus_one",
    "unscaled",
]
