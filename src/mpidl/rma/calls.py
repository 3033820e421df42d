"""The coordinator's calls on servers, and their answers: small Python objects as messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from mpidl.rma.doorbells import Doorbells
from mpidl.transport.coordination import Tag


class Caller:
    """The coordinator's end; `servers` are the servers' ranks."""

    def __init__(self, comm: MPI.Intracomm, servers: Sequence[int], doorbells: Doorbells) -> None:
        self._comm, self._servers, self._doorbells = comm, servers, doorbells
        self._answers: dict[int, Any] = {}

    def call(self, message: Any) -> None:
        """Send a message to all servers, which answer it; see `answers`."""
        self._answers.clear()
        sent = [self._comm.isend(message, rank, Tag.CALL) for rank in self._servers]
        for rank in self._servers:
            self._doorbells.ring(rank)
        # A long message is complete when its receiver, which may have to be woken, takes it.
        MPI.Request.waitall(sent)

    def answers(self) -> list[Any] | None:
        """Return each server's answer, in their order, or None while one is missing."""
        for rank in self._servers:
            if rank not in self._answers and self._comm.iprobe(rank, Tag.ANSWER):
                self._answers[rank] = self._comm.recv(source=rank, tag=Tag.ANSWER)
        if len(self._answers) < len(self._servers):
            return None
        return [self._answers[rank] for rank in self._servers]

    def notices(self) -> list[tuple[int, Any]]:
        """Return the notices of servers: pairs of a server's number and the message."""
        found = []
        for number, rank in enumerate(self._servers):
            while self._comm.iprobe(rank, Tag.NOTICE):
                found.append((number, self._comm.recv(source=rank, tag=Tag.NOTICE)))
        return found


class Callee:
    """A server's end."""

    def __init__(self, comm: MPI.Intracomm, coordinator: int, doorbells: Doorbells) -> None:
        self._comm, self._coordinator, self._doorbells = comm, coordinator, doorbells

    def next(self) -> Any | None:
        """Return the next call, or None if there is none."""
        if not self._comm.iprobe(self._coordinator, Tag.CALL):
            return None
        return self._comm.recv(source=self._coordinator, tag=Tag.CALL)

    def answer(self, message: Any) -> None:
        """Answer the last call."""
        self._send(message, Tag.ANSWER)

    def notify(self, message: Any) -> None:
        """Send the coordinator a notice, which is no answer."""
        self._send(message, Tag.NOTICE)

    def _send(self, message: Any, tag: int) -> None:
        sent = self._comm.isend(message, self._coordinator, tag)
        self._doorbells.ring(self._coordinator)
        sent.wait()
