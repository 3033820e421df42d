"""Any number of servers and replicas in one process, in seeded virtual time."""

from mpidl.engines.virtual.engine import VirtualEngine
from mpidl.engines.virtual.handler import Hooks, Training
from mpidl.engines.virtual.times import Times, VirtualTime

__all__ = ["Hooks", "Times", "Training", "VirtualEngine", "VirtualTime"]
