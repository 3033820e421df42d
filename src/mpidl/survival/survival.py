"""What a process does when another one of its job dies: it takes over ranks of that one, or the job ends at once."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np
from mpi4py import MPI

from mpidl.config import Config
from mpidl.errors import named
from mpidl.job import takeover
from mpidl.launch import keeper, marks
from mpidl.launch.fault_points import fault_point
from mpidl.launch.output import attempt, finish, say
from mpidl.launch.signals import STOPPED
from mpidl.rma.windows import allocation_chosen
from mpidl.roles.events import Failed, Incident, Recovered
from mpidl.survival.table import ProcessStage, ProcessState, ProcessTable
from mpidl.survival.watch import Pace, Watch, has_ended, is_traced
from mpidl.topology.roles import Roles
from mpidl.topology.takeover import Fixed, successors

#: Plays a rank to the end of the run, in a thread of its own. It calls the function given once the dead process's work
#: continues, with the number of chunks of pushes that are lost.
Play: TypeAlias = "Callable[[int, Callable[[int], None]], None]"

#: Seconds that a line needs to pass through the launcher.
PASSING = 0.2


class FailFast:
    """One process's part in a job that a death ends. `processes` is that of `mpidl.rma.shared_state.SharedState`.

    `fixed` says why ranks can't be taken over, as far as all processes know.
    """

    processes: np.ndarray | None = None
    died = False
    fixed = Fixed()

    @property
    def limits(self) -> list[str]:
        """What a death ends although the job may outlive others, in lines."""
        return []

    def alone(self) -> AbstractContextManager[None]:
        """Return a context that only one process is in at a time."""
        return nullcontext()

    def incidents(self, known: int) -> list[Incident]:
        """Return what has happened to the job's processes, but for the first `known` incidents."""
        return []

    def computing(self) -> AbstractContextManager[None]:
        """Return a context in which this process computes one batch, and waits for no other rank."""
        return nullcontext()

    def hand_over(self) -> bool:
        """Let others play this process's rank from its end on; return whether they can."""
        return False

    def end(self) -> NoReturn:
        """End this process, which has handed its rank over, with exit code 0."""
        finish()
        os._exit(0)

    @contextmanager
    def taking_over(self, play: Play) -> Iterator[None]:
        """Survive deaths in this context, where that is possible.

        The process's own rank has been played to its end when it leaves the context.
        """
        yield

    def join(self) -> None:
        """Wait until all ranks that this process has taken over have been played to their ends."""


class Survival(FailFast):
    """One process's part in a job that outlives its processes; made collectively by those of one node.

    While the job is prepared, and where ranks are `fixed`, a death ends it at once with a line. `roles` are those of
    the ranks; `hang_after` is that of `Pace`.
    """

    def __init__(self, comm: MPI.Intracomm, roles: Roles, fixed: Fixed, hang_after: float | None) -> None:
        self._own, self._roles, self.fixed = comm.rank, roles, fixed
        path: Path = comm.bcast(ProcessTable.create(comm.size) if comm.rank == 0 else None)
        self._table = ProcessTable(path, comm.size)
        self.processes: np.ndarray = self._table.processes
        pids = comm.allgather(os.getpid())
        self._table.pids[:] = pids
        self._parents = comm.allgather(os.getppid())
        self._pace, self._killed = Pace(self._table.batches, self._own, hang_after), set[int]()
        self._play: Play | None = None
        self._playing, self._gone, self._threads = {self._own}, set[int](), list[threading.Thread]()
        comm.Barrier()
        if comm.rank == 0:
            path.unlink()
        others = {process: pid for process, pid in enumerate(pids) if process != self._own}
        self._watch = Watch(others, self._own, self._ended, self._is_hopeless)
        keeper.may_die()
        at_work(self)

    @property
    def died(self) -> bool:  # type: ignore[override]
        """Whether a process has died, or has handed its rank over."""
        return self._table.deaths > 0 or bool((self.processes != np.arange(len(self.processes))).any())

    @property
    def coordinates(self) -> bool:
        """Whether this process plays the coordinator."""
        return int(self.processes[self._roles.coordinator]) == self._own

    @contextmanager
    def taking_over(self, play: Play) -> Iterator[None]:
        self._play = play
        self._table.stages[self._own] = ProcessStage.TRAINING
        yield
        self._table.stages[self._own] = ProcessStage.CLOSING

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def alone(self) -> AbstractContextManager[None]:
        return self._table.locked()

    def computing(self) -> AbstractContextManager[None]:
        return self._pace.computing()

    @property
    def limits(self) -> list[str]:
        return self.fixed.lines()

    def hand_over(self) -> bool:
        with self._table.locked():
            table, own = self._table, self._own
            found = self._successors([own], without=own)
            # What it plays for others can't be handed on.
            if isinstance(found, str) or table.failed or table.played_by(own) != [own]:
                return False
            # If this process dies in between, its rank has the process that it was handed to.
            table.processes[own], table.states[own] = found[own], ProcessState.LEFT
            return True

    def _successors(self, ranks: Iterable[int], without: int | None = None) -> dict[int, int] | str:
        """Return the process that can take over each rank now, not `without`, or what prevents it for one of them."""
        table = self._table
        stages = {ProcessStage(table.stages[each]) for each in table.alive}
        if ProcessStage.PREPARING in stages:
            return "the training had not begun"
        if ProcessStage.CLOSING in stages:
            return "the run was over"
        others = [each for each in table.alive if each != without]
        return successors(ranks, self._roles, table.processes.tolist(), others, self.fixed)

    def _is_hopeless(self, process: int, stopped: bool) -> bool:
        """Return whether a process is to be killed, which a signal has `stopped`, or which hangs; say so once."""
        hangs = self._pace.hangs(process, self._table.alive, time.monotonic())
        pid = int(self._table.pids[process])
        if not (stopped or (hangs and not is_traced(pid))):
            return False
        if isinstance(self._successors(self._table.played_by(process), without=process), str):
            return False
        if process not in self._killed:
            self._killed.add(process)
            longest = f"{self._pace.longest(process):.3g}"
            why = "is stopped by a signal" if stopped else f"hangs in a batch (its longest so far took {longest} s)"
            attempt(lambda: say(f"{self._named(process)} {why}: killing its process {pid}"))
        return True

    def fail(self) -> None:
        """Let the job end: others do when this process does."""
        self._table.fail()  # The owner of the lock may stand still.
        keeper.ends_job()

    def leave(self) -> None:
        """Say that this process ends because its work is done."""
        self._table.states[self._own] = ProcessState.LEFT

    @property
    def failed(self) -> bool:
        """Whether the job ends without being done."""
        return self._table.failed

    def stop(self) -> None:
        """Watch the other processes no more."""
        self._watch.end()

    def incidents(self, known: int) -> list[Incident]:
        return [self._incident(each) for each in self._table.incidents(known)]

    def _incident(self, noted: np.void) -> Incident:
        rank, by = int(noted["rank"]), int(noted["by"])
        role = self._roles.role(rank)
        if by >= 0:
            lost = {"chunks": int(noted["chunks"])} if noted["chunks"] else {}
            return Recovered(rank, role, by, float(noted["time"]), lost, bool(noted["drained"]))
        code, pid = int(noted["code"]), int(self._table.pids[rank])
        name = signal.Signals(-code).name if code < 0 else None
        numbers = float(noted["time"]), int(noted["workers"]), code if code > 0 else None
        return Failed(rank, role, self._host(rank), pid, name, *numbers)

    def _ended(self, process: int, code: int) -> None:
        """Handle the end of another process, in a thread of its own."""
        noticed, obstacle = time.time(), None
        try:
            with self._table.locked():
                if self._table.states[process] == ProcessState.ALIVE and not self._table.failed:
                    self._table.states[process] = ProcessState.DEAD
                    obstacle = self._decide(process, code, noticed)
                if not self._table.failed:
                    self._play_orphans(process, noticed)
        except Exception as error:  # Something has closed all files, or there is no memory for a thread.
            self._table.fail()
            obstacle = f"rank {self._own} can't continue, {named(error)}"
        if self._table.failed:
            if obstacle is not None:
                attempt(lambda: self._tell(process, code, obstacle))
            time.sleep(PASSING)
            keeper.ends_job()
            os._exit(1)

    def _play_orphans(self, process: int, noticed: float) -> None:
        """Begin to play what another process has left to this one."""
        drained = self._table.states[process] == ProcessState.LEFT
        self._gone.add(process)
        for rank in self._table.played_by(self._own):
            # A process that hands its rank over plays it to its own end.
            if rank not in self._playing and rank in self._gone:
                self._playing.add(rank)
                thread = threading.Thread(target=self._take_over, args=(rank, noticed, drained), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _tell(self, process: int, code: int, obstacle: str) -> None:
        """Say that another process's end ends the job."""
        cause = f"was killed by {signal.Signals(-code).name}" if code < 0 else "has ended"
        cause = f"{self._named(process)} {cause}{f' with exit code {code}' if code > 0 else ''}"
        say(f"{cause}, which ends the job: {obstacle}")
        marks.tell_failed(cause, rank=process, role=self._roles.role(process))

    def _decide(self, process: int, code: int, noticed: float) -> str | None:
        """Find a process for each rank of one that has died; if that isn't possible, let the job fail, and say why."""
        table, found = self._table, self._successors(self._table.orphans())
        if (parent := self._parents[process]) and has_ended(parent):  # The launcher has noticed that.
            found = f"its parent, process {parent}, has ended"
        elif ProcessStage.CLOSING in table.stages[table.alive] and table.deaths > 1:
            return None  # Nothing is left to do but to leave.
        if isinstance(found, str):
            table.fail()
            return found
        for rank, successor in found.items():
            table.processes[rank] = successor
        workers = {int(self.processes[rank]) for replica in self._roles.replicas for rank in replica}
        table.note(rank=process, by=-1, code=code, time=noticed, workers=len(workers))
        return None

    def _take_over(self, rank: int, noticed: float, drained: bool) -> None:
        """Play a rank whose process has died, or has handed it over."""
        assert self._play is not None, "no rank is taken over before the training"

        fault_point("taking-over")

        def recovered(chunks: int = 0) -> None:
            fault_point("taken-over")
            with self._table.locked():
                seconds = time.time() - noticed
                self._table.note(rank=rank, by=self._own, time=seconds, chunks=chunks, drained=drained)

        self._play(rank, recovered)

    def _named(self, process: int) -> str:
        return f"rank {process} ({self._roles.role(process)}){self._roles.place(process)}"

    def _host(self, process: int) -> str:
        return self._roles.hosts[process] if self._roles.hosts else ""


#: The part of this process in its last job.
_current: Survival | None = None
#: The code with which this process exits, if that is known.
exit_code: int | None = None


def at_work(survival: Survival) -> None:
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


def speaks(rank: int) -> bool:
    """Return whether the process that began as `rank` reports to people: it plays the first rank of the job."""
    return rank == 0 if _current is None else _current.coordinates


def _leave() -> None:
    """Leave the job at the process's exit."""
    assert _current is not None
    raised = getattr(sys, "last_value", None) is not None
    code = int(_current.failed or raised) if exit_code is None else exit_code
    if not _current.failed:
        _current.leave()
    if code not in (0, STOPPED):
        keeper.ends_job()
    if _current.died:
        sys.__dict__["mpidl"] = _WithoutMpi(code)


class _WithoutMpi:
    """Ends this process when the interpreter forgets it, the last of all objects: MPI would wait for the dead."""

    def __init__(self, code: int) -> None:
        self._exit, self._code = os._exit, code

    def __del__(self) -> None:
        self._exit(self._code)


def begin(comm: MPI.Intracomm, roles: Roles, config: Config, nodes: Collection[int]) -> FailFast:
    """Return this process's part in what follows a death; collective."""
    watches = config.topology.survive == "auto" and len(nodes) == 1 and comm.size > 1 and hasattr(os, "pidfd_open")
    if not watches:
        return FailFast()
    return Survival(comm, roles, takeover.fixed(config, roles) | Fixed(_missing()), config.run.hang_after)


def _missing() -> str | None:
    """Return what the MPI library or its windows lack for a process to play several ranks; None if nothing."""
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        return "MPI has been begun for calls from one thread alone"
    if (chosen := allocation_chosen()) != "allocate":
        return f"MPIDL_WINDOWS: {chosen}, ranks don't share their memory"
    return None
