"""What a process does when another one of its job dies: it takes over ranks of that one, or the job ends at once."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpidl.launch import output
from mpidl.launch.output import say
from mpidl.report.recorder import record_event
from mpidl.survival.table import Stage, State, Table
from mpidl.survival.takeover import heir
from mpidl.survival.watch import Watch
from mpidl.topology.roles import Roles

#: Seconds that a line needs to pass through the launcher.
PASSING = 0.2


class Mortal:
    """One process's part in a job that a death ends. `processes` is that of `mpidl.rma.shared_state.SharedState`."""

    processes: np.ndarray | None = None
    died = False

    @contextmanager
    def taking_over(self, play: Callable[[int], None], directory: Path) -> Iterator[None]:
        """Survive deaths in this context, where that is possible.

        `play` plays a rank that this process takes over, in a thread of its own; on leaving the context, the process
        waits until all are played to their ends. The events of the run in `directory` get the deaths.
        """
        yield


class Survival(Mortal):
    """One process's part in a job that outlives its processes; made collectively by those of one node.

    While the job is prepared, and where `obstacle` says why ranks can't be taken over, a death ends it at once with a
    line. `roles` are those of the ranks.
    """

    def __init__(self, comm: MPI.Intracomm, roles: Roles, obstacle: str | None) -> None:
        self._own, self._roles, self._obstacle = comm.rank, roles, obstacle
        path: Path = comm.bcast(Table.create(comm.size) if comm.rank == 0 else None)
        self._table = Table(path, comm.size)
        self.processes = self._table.processes
        pids = comm.allgather(os.getpid())
        self._table.pids[:] = pids
        self._play: Callable[[int], None] | None = None
        self._directory: Path | None = None
        self._playing, self._threads = {self._own}, list[threading.Thread]()
        comm.Barrier()
        if comm.rank == 0:
            path.unlink()
        others = {process: pid for process, pid in enumerate(pids) if process != self._own}
        self._watch = Watch(others, self._own, self._ended)
        _at_work(self)

    @property
    def died(self) -> bool:  # type: ignore[override]
        """Whether a process has died."""
        return self._table.deaths > 0

    @contextmanager
    def taking_over(self, play: Callable[[int], None], directory: Path) -> Iterator[None]:
        self._play, self._directory = play, directory
        self._table.stages[self._own] = Stage.TRAINING
        yield
        self._table.stages[self._own] = Stage.CLOSING
        for thread in self._threads:
            thread.join()

    def fail(self) -> bool:
        """Let the job end: others do when this process does. Return whether it is the first to say so."""
        with self._table.locked():
            return self._table.fail()

    def leave(self) -> None:
        """Say that this process ends because its work is done."""
        self._table.states[self._own] = State.LEFT

    @property
    def failed(self) -> bool:
        """Whether the job ends without being done."""
        return self._table.failed

    def stop(self) -> None:
        """Watch the other processes no more."""
        self._watch.end()

    def _ended(self, process: int, cause: str) -> None:
        """Handle the end of another process; called by the watch's thread."""
        noticed = time.time()
        with self._table.locked():
            if self._table.states[process] == State.ALIVE and not self._table.failed:
                self._table.states[process] = State.DEAD
                self._decide(process, cause, noticed)
        if self._table.failed:
            time.sleep(PASSING)
            os._exit(1)
        for rank in self._table.played_by(self._own):
            if rank not in self._playing:
                self._playing.add(rank)
                thread = threading.Thread(target=self._take_over, args=(rank,), name=f"mpidl rank {rank}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _decide(self, process: int, cause: str, noticed: float) -> None:
        """Find a process for each rank of one that has died; if that isn't possible, let the job fail."""
        table = self._table
        stages = [Stage(table.stages[each]) for each in table.alive]
        died = f"{self._named(process)} was killed by {cause}" if cause else f"{self._named(process)} has ended"
        obstacle = self._obstacle
        if Stage.PREPARING in stages:
            obstacle = "the training had not begun"
        elif Stage.CLOSING in stages:
            if table.deaths > 1:
                return  # Nothing is left to do but to leave.
            obstacle = "the run was over"
        orphans = [rank for rank in table.orphans() if rank not in self._roles.standby]
        if obstacle is None:
            for rank in orphans:
                found = heir(rank, self._roles, table.processes.tolist(), table.alive)
                if found is None:
                    obstacle = f"no process is left that can be {self._roles.role(rank)}"
                    break
                table.processes[rank] = found
        if obstacle is not None:
            table.fail()
            say(f"{died}, which ends the job: {obstacle}")
            return
        say(died)
        if self._directory is not None:
            record_event(
                self._directory, "failure", process, self._roles.role(process), host=self._host(process),
                pid=int(table.pids[process]), signal=cause, noticed=noticed,
            )  # fmt: skip

    def _take_over(self, rank: int) -> None:
        assert self._play is not None, "no rank is taken over before the training"
        self._play(rank)

    def _named(self, process: int) -> str:
        return f"rank {process} ({self._roles.role(process)}){self._roles.place(process)}"

    def _host(self, process: int) -> str:
        return self._roles.hosts[process] if self._roles.hosts else ""


#: The part of this process in its last job.
_current: Survival | None = None


def _at_work(survival: Survival) -> None:
    """Note the process's part in a job, in the place of its part in one before."""
    global _current
    if _current is None:
        atexit.register(_leave)
    else:
        _current.leave()
        _current.stop()
    _current = survival


def fail() -> None:
    """Let the job of this process fail when the process ends, if there is one."""
    if _current is not None:
        _current.fail()


def _leave() -> None:
    """Leave the job at the process's exit; without waiting in MPI for processes that have died."""
    assert _current is not None
    if not _current.failed:
        _current.leave()
    if _current.died:
        leave_without_mpi(1 if _current.failed or getattr(sys, "last_value", None) is not None else 0)


def leave_without_mpi(code: int) -> None:
    """End this process, after what is to be done at its exit but for MPI's part."""
    atexit._run_exitfuncs()
    output.finish()
    os._exit(code)
