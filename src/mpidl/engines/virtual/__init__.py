"""Any number of servers and replicas in one process, in seeded virtual time."""

from mpidl.engines.virtual.engine import VirtualEngine

__all__ = ["VirtualEngine"]
