"""A window whose remote operations are messages.

Ranks that share memory with this one are reached through an MPI window over these ranks; all others by requests, which
they carry out on the same memory whenever they serve. A put waits for nothing: its values, or a copy of those that may
change, are sent in the background. Only ranks that offer regions are contacted.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.rma.nodes import neighbours
from mpidl.rma.ownership import Freed, Owner
from mpidl.rma.requests import HEAD_BYTES, OPERATORS, SHORT, Changed, RequestKind, Requests, RequestTag, ignored
from mpidl.rma.sends import ProgressThread, Sends, piece_between, pieces
from mpidl.rma.staging import Staging
from mpidl.rma.verbs import RemoteMemory
from mpidl.rma.windows import OwnMemory, Window, place

#: Looks for an answer before a rank sleeps, since some MPIs take in one message per look, and seconds of a sleep.
LOOKS, SLEEP = 100, 30e-6


class MessageWindow(Owner, RemoteMemory):
    """Memory that ranks of other nodes reach by messages; its own verbs reach only these ranks.

    `shapes` has the dtype and the count of each region that this rank offers; other ranks may offer others. If `mixed`,
    ranks of a node share an MPI window; otherwise, messages carry everything between any two ranks. `allocation` and
    `staging` are those of `mpidl.rma.windows.Window`. `asked_by` are the ranks that reach its regions, besides those
    that share an MPI window with this one; all by default. `changed` is that of `mpidl.rma.requests.Requests`.
    """

    supports_deferred_get = True

    def __init__(
        self, comm: MPI.Intracomm, shapes: Mapping[str, tuple[Any, int]], mixed: bool, allocation: str = "allocate",
        staging: Staging | None = None, asked_by: Collection[int] | None = None, changed: Changed = ignored,
    ) -> None:  # fmt: skip
        self._comm: Any = comm.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._near: Any = self._share(shapes, mixed, allocation, staging)
        self._outgoing = None if staging is None else staging.another()
        self._incoming = None if staging is None else staging.another()
        regions, size = place(shapes)
        everywhere = comm.allgather((list(regions), asked_by))

        def asks(rank: int, other: int) -> bool:
            names, asked_by = everywhere[other]
            return bool(names) and (asked_by is None or rank in asked_by)

        others = [rank for rank in range(comm.size) if rank not in self._near_ranks]
        self._targets = [rank for rank in others if asks(comm.rank, rank)]
        self._regions: Any = {
            rank: {name: number for number, name in enumerate(everywhere[rank][0])} for rank in self._targets
        }
        far = others[0] if others else None
        self.piece = piece_between(self._comm, far)
        self._sends = Sends(self._comm, self.piece)
        self._answers = {rank: list[MPI.Request]() for rank in self._targets}
        self._sources = [rank for rank in others if asks(rank, comm.rank)]
        self._requests = Requests(self._comm, self._sources, self._near, regions, self._sends, self.piece, changed)
        self._lock = threading.RLock()
        # Ranks that serve call MPI all the time; others compute, and their messages advance only while MPI is called.
        several = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._attended = False
        self._watches: list[MPI.Request] = []
        self._thread = None
        if several and self._targets and not size:
            self._thread = ProgressThread(self._advance)
        self._comm.Barrier()

    def _share(
        self, shapes: Mapping[str, tuple[Any, int]], mixed: bool, allocation: str, staging: Staging | None
    ) -> Window | OwnMemory:
        """Return the memory of this rank, which reaches that of its neighbours; keep their ranks."""
        node = neighbours(self._comm)
        self._near_ranks: Any = node.allgather(self._comm.rank) if mixed else [self._comm.rank]
        if len(self._near_ranks) > 1:
            self._node: MPI.Intracomm | None = node
            return Window(node, shapes, allocation, staging, self._near_ranks)
        node.Free()
        self._node = None
        return OwnMemory(shapes)

    def local(self, name: str) -> np.ndarray:
        memory: np.ndarray = self._near.local(name)
        return memory

    def to(self, rank: int) -> RemoteMemory:
        return self._near if rank in self._near_ranks else self

    def as_rank(self, rank: int) -> MessageWindow:
        raise ValueError(f"rank {rank} is reached by messages, which its process answers")

    def put(self, values: Any, rank: int, name: str, offset: int = 0, *, zero_copy: bool = False) -> None:
        host = self.on_host(values, rank)
        data = host.reshape(-1).view(np.uint8)
        if data.size <= SHORT:
            with self._lock:
                self._ask(RequestKind.PUT, rank, name, offset, data.size, data=data)
            return
        copy = None
        if not zero_copy or host is not values:
            with self._lock:
                copy = self._sends.borrow(data.size)
            copy[: data.size] = data
            data = copy[: data.size]
        with self._lock:
            self._ask(RequestKind.LONG_PUT, rank, name, offset, data.size)
            self._sends.start(data, rank, RequestTag.DATA, copy)
        self._wake()

    def get(self, values: Any, rank: int, name: str, offset: int = 0) -> None:
        if self._incoming is not None:
            values = self._incoming.incoming(values, rank)
        with self._lock:
            parts = pieces(values, self.piece)
            self._answers[rank] += [self._comm.Irecv(part, rank, RequestTag.ANSWER) for part in parts]
            self._ask(RequestKind.GET, rank, name, offset, values.nbytes)
        if values.nbytes > SHORT:
            self._wake()

    def get_when(self, values: Any, rank: int, name: str, offset: int, counter: str, element: int, least: int) -> None:
        if self._incoming is not None:
            values = self._incoming.incoming(values, rank)
        with self._lock:
            parts = pieces(values, self.piece)
            self._answers[rank] += [self._comm.Irecv(part, rank, RequestTag.LATER) for part in parts]
            operator = self._regions[rank][counter]
            self._ask(RequestKind.GET_WHEN, rank, name, offset, values.nbytes, operator, element, least)
        self._wake()

    def watch(self, rank: int, name: str, element: int, least: int) -> Callable[[], bool]:
        with self._lock:
            answer = self._comm.Irecv([np.empty(1, np.int64), 8, MPI.BYTE], rank, RequestTag.LATER)
            self._watches.append(answer)
            self._ask(RequestKind.GET_WHEN, rank, name, element, 8, self._regions[rank][name], element, least)

        def reached() -> bool:
            with self._lock:
                if answer and answer.Test():
                    self._watches = [each for each in self._watches if each]
            return not answer

        return reached

    def fetch_and_op(
        self, value: np.ndarray, before: np.ndarray, rank: int, name: str, offset: int, op: MPI.Op
    ) -> None:
        with self._lock:
            self._answers[rank].append(self._comm.Irecv([before, 8, MPI.BYTE], rank, RequestTag.ANSWER))
            operator = OPERATORS.index(op)
            self._ask(RequestKind.FETCH_AND_OP, rank, name, offset, 8, operator, int(value[0]))

    def _ask(
        self, operation: RequestKind, rank: int, name: str, offset: int, size: int, operator: int = 0,
        operand: int = 0, least: int = 0, data: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        length = HEAD_BYTES + (0 if data is None else size)
        message = self._sends.borrow(HEAD_BYTES + SHORT)
        region = self._regions[rank][name] if name else 0
        message[:HEAD_BYTES].view(np.int64)[:] = (operation, region, offset, size, operator, operand, least)
        if data is not None:
            message[HEAD_BYTES:length] = data
        self._sends.start(message[:length], rank, RequestTag.REQUEST, message)

    def _wake(self) -> None:
        if self._thread is not None and not self._attended:
            self._thread.wake()

    def _advance(self) -> bool:
        """Advance this rank's own requests; return whether the thread must advance them again."""
        if self._attended:
            return False
        with self._lock:
            self._sends.advance()
            waiting = [rank for rank, answers in self._answers.items() if answers]
            return not all(self._answered(rank) for rank in waiting) or bool(self._sends)

    def fence(self, rank: int) -> None:
        """Finish staged copies; MPI keeps messages in order."""
        if self._outgoing is not None:
            self._outgoing.flushed(rank)

    def flush(self, rank: int) -> None:
        self._wait(lambda: self._answered(rank) and not self._sends.holds(rank))
        if self._incoming is not None:
            self._incoming.flushed(rank)
        self.fence(rank)

    def _answered(self, rank: int) -> bool:
        answers = self._answers[rank]
        with self._lock:
            if answers and MPI.Request.Testall(answers):
                answers.clear()
        return not answers

    def _wait(self, ready: Any) -> None:
        """Wait, serving other ranks, so that two ranks can wait for each other."""
        looks = 0
        with self.attended():
            while not ready():
                if self.serve():
                    looks = 0
                looks += 1
                if looks < LOOKS:
                    os.sched_yield()
                else:
                    time.sleep(SLEEP)

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Pause the thread, which would only compete with the caller."""
        before, self._attended = self._attended, True
        try:
            yield
        finally:
            self._attended = before
        if self._thread is not None and not before:
            with self._lock:
                self._sends.advance()
                left = bool(self._sends) or any(self._answers.values())
            if left:
                self._thread.wake()

    def on_host(self, values: Any, rank: int) -> np.ndarray:
        host: np.ndarray = values
        return host if self._outgoing is None else self._outgoing.on_host(values, rank)

    def sync(self) -> None:
        self._near.sync()

    def serve(self) -> bool:
        if self._thread is not None and self._thread.error is not None:
            raise self._thread.error
        with self._lock:
            self._sends.advance()
            return self._requests.serve()

    def quiesce(self) -> None:
        for rank in self._targets:
            self.flush(rank)
            with self._lock:
                self._ask(RequestKind.QUIESCE, rank, "", 0, 0)
        self._wait(lambda: self._requests.quiesced >= len(self._sources) and not self._sends)
        self._requests.quiesced -= len(self._sources)
        all_here = self._comm.Ibarrier()
        self._wait(all_here.Test)
        self._near.sync()

    def free(self) -> None:
        self.quiesce()
        if self._thread is not None:
            self._thread.end()
        for watch in self._watches:
            watch.Cancel()
            watch.Wait()
        comm, near = self._comm, self._near
        self._comm = self._near = self._near_ranks = self._regions = Freed("the window")
        self._requests.free()
        near.free()
        if self._node is not None:
            self._node.Free()
        comm.Free()
