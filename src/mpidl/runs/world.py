"""The ranks of a run: their roles and nodes, and how they agree, or fail, together."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from mpi4py import MPI
from msgspec.structs import replace

from mpidl.config import Config
from mpidl.engines import monotonic
from mpidl.errors import DivergenceError, MpidlError, Unfinished, UsageError, named
from mpidl.launch import marks
from mpidl.launch.output import attempt, say, show_traceback
from mpidl.report.recorder import first_failure, record_event
from mpidl.rma.nodes import neighbours
from mpidl.runs.agreement import together
from mpidl.survival import survival
from mpidl.topology.roles import check_number

T = TypeVar("T")


class World:
    """The ranks of a run; made collectively, with the nodes told to the launcher.

    `nodes` has for each rank the lowest rank of its node, and `workers` the ranks that train, replica by replica.
    Failures are recorded in the events of the run's directory, once it is known. Raise UsageError if there are too few
    ranks, or a number that leaves some without a role.
    """

    def __init__(self, comm: MPI.Intracomm, config: Config) -> None:
        self.comm, self.rank = comm, comm.rank
        self.directory: Path | None = None
        node = neighbours(comm)
        lowest = node.allreduce(comm.rank, op=MPI.MIN)
        node.Free()
        self.nodes: list[int] = comm.allgather(lowest)
        monotonic.agree(comm, near=lowest == self.nodes[0])
        if comm.rank == 0:
            marks.tell(marks.READY)
            if len(set(self.nodes)) > 1 and (text := marks.nodes_as_text(self.nodes)) is not None:
                marks.tell(f"{marks.NODES} {text}")
        topology, hosts = config.topology, tuple(comm.allgather(MPI.Get_processor_name()))
        self.roles = replace(topology.assign(self.nodes, config.servers), hosts=hosts)
        ranks = comm.size - topology.standby
        check_number(ranks, config.servers, topology.partitions, len(self.roles.intermediaries))
        self.survival = survival.begin(comm, self.roles, config, set(self.nodes))
        self.workers = [rank for replica in self.roles.replicas for rank in replica]

    @property
    def trains(self) -> bool:
        """Whether this rank trains."""
        return self.rank in self.workers

    @property
    def coordinates(self) -> bool:
        """Whether this rank is the coordinator."""
        return self.rank == self.roles.coordinator

    def agree(self, action: Callable[[], T], in_groups: bool = False, before: Callable[[], None] = lambda: None) -> T:
        """Carry out an action on every rank; if it fails on some, raise the first one's error on all.

        If `in_groups`, ranks of a replica wait for each other in the action: an error that isn't a `UsageError`, which
        they all meet, then ends the job. `before` is called after the action, before this rank waits for the others.
        """

        def guarded() -> T:
            with self.failing_together(but=(UsageError,) if in_groups else (MpidlError, MemoryError)):
                return action()

        def gather(value: Any) -> list[Any]:
            before()
            return self.comm.allgather(value)

        roles = self.roles
        return together(
            guarded, (self.rank, gather), lambda rank: f"rank {rank}, {roles.role(rank)}{roles.place(rank)}"
        )

    @contextmanager
    def failing_together(self, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """End the whole job if this rank raises an error that the others don't know of; name rank, role and cause.

        Once the run has a directory, its events have the failure with a traceback, and of several ranks that fail
        together only the first writes a line. Errors of the types `but` are only raised.
        """
        try:
            yield
        except but:
            raise
        except BaseException as error:
            self._abort(error)

    def _abort(self, error: BaseException) -> None:
        """End the job, whatever keeps this rank from saying why."""
        try:
            attempt(survival.fail, lambda: self._tell(error))
        finally:
            self.comm.Abort(error.exit_code if isinstance(error, Unfinished) else 1)

    def _tell(self, error: BaseException) -> None:
        roles, run = self.roles, self.directory
        cause = str(error) if isinstance(error, MpidlError) else named(error)
        diverged = isinstance(error, DivergenceError)
        rank = error.rank if isinstance(error, DivergenceError) and error.rank is not None else self.rank
        cause, role = " ".join(cause.split()), roles.role(rank)
        if isinstance(error, Unfinished):
            say(cause)
            marks.tell_done(error.exit_code, self.comm.size)
            return
        first = run is None or first_failure(run, self.rank)
        if first:
            say(f"rank {rank} ({role}){roles.place(rank)} failed: {cause}")
            marks.tell_failed(f"rank {rank} ({role}){roles.place(rank)} failed", again=not diverged)
        if run is not None:
            record_event(
                run, "failure", rank, role, host=roles.hosts[rank], cause=cause,
                traceback="".join(traceback.format_exception(error)),
            )  # fmt: skip
        if os.environ.get("MPIDL_DEBUG"):
            show_traceback(error)
        # The line needs time to pass through the launcher before the launcher ends the job.
        time.sleep(0.2 if first else 1.0)
