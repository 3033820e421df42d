"""A replica's requests carried out on real ranks, over MPI."""

from mpidl.engines.mpi.engine import MpiEngine

__all__ = ["MpiEngine"]
