"""A training loop of the user's own: the requests of an algorithm's replica, carried out where the loop steps."""

from mpidl.loops.loop import loop
from mpidl.loops.replica import Replica

__all__ = ["Replica", "loop"]
