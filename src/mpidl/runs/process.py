"""The process of a rank: signals that stop its run, and what follows an exception or an exit that nothing catches."""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn

from mpidl.errors import MpidlError, UsageError
from mpidl.launch import environment, marks
from mpidl.launch.output import attempt, say, show_traceback
from mpidl.launch.signals import STOPPED, handled

#: Seconds that ranks other than the first wait before they report: usually, all have made the same mistake.
AFTER_FIRST = 3.0
#: Seconds that a rank which exits with another status than 0 waits for others to do so, too.
FOR_OTHERS = 5.0
#: Variable of Open MPI's mpirun.
OPEN_MPI = "OMPI_COMM_WORLD_RANK"
#: Environment variable with the number of the process that is a rank; those that it starts are none.
PROCESS = "MPIDL_RANK_PROCESS"
#: The module that knows whether processes have died, loaded if the ranks have begun a run.
SURVIVAL = "mpidl.survival.survival"
#: Seconds that lines need to pass through the launcher.
PASSING = 0.2


def end_job_together() -> None:
    """Let an uncaught exception on one of several ranks end them all, as under ``python -m mpi4py``.

    The exception is reported as before, with a line that names the rank; a `MpidlError` is reported in one line.
    ``sys.exit`` with another status than 0 ends them all, too, unless all do so. A process alone isn't affected.
    """
    with suppress(UsageError):  # Training reports a launcher's invalid variables.
        if environment.world().size == 1:
            return
        if not isinstance(sys.excepthook, _Hook):
            sys.excepthook = _Hook(sys.excepthook)
        if PROCESS not in os.environ:
            os.environ[PROCESS] = str(os.getpid())
            for module, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
                setattr(module, name, _exit)


def exits(code: int) -> int:
    """Note the code with which this process exits, and return it."""
    if (survival := sys.modules.get(SURVIVAL)) is not None:
        vars(survival)["exit_code"] = code
    return code


def speaks(rank: int) -> bool:
    """Return whether the process that began as `rank` reports to people; others do when the first one has died."""
    survival = sys.modules.get(SURVIVAL)
    return rank == 0 if survival is None else survival.speaks(rank)


def end_job(code: int) -> None:
    """End all ranks when this process exits, because some may wait for this one."""
    survival, cause = sys.modules.get(SURVIVAL), f"rank {environment.world().rank} failed"
    attempt(*([survival.fail] if survival else []), lambda: marks.tell_failed(cause))
    time.sleep(PASSING)
    if _mpi() is not None:
        from mpi4py import run

        run.set_abort_status(code)


def _mpi() -> Any:
    """Return `mpi4py.MPI`, which has begun; None if no rank can wait for this one in it.

    Before MPI begins, only Open MPI's mpirun ends a job by itself: other ranks would wait in MPI_Init, which this one
    has to join.
    """
    if "mpi4py.MPI" not in sys.modules and OPEN_MPI in os.environ:
        return None
    environment.prepare_mpi()
    with suppress(ImportError, RuntimeError):
        from mpi4py import MPI

        if not MPI.Is_initialized():
            MPI.Init()
        return MPI
    return None


def exit_code(end: SystemExit) -> int:
    """Return the code for the exit of a script, as one of the command's own, and end the job unless the script is done.

    Another code is reported, as is the text that the script may have given instead.
    """
    given, (rank, size, _) = end.code, environment.world()
    if given is None or given in (0, STOPPED):
        return int(given or 0)
    own = given in (1, 2)
    if not own:
        if rank > 0:
            time.sleep(AFTER_FIRST)
        attempt(lambda: say(f"the script ended with exit code {given}" if isinstance(given, int) else str(given)))
    code = int(given) if own else 1
    if size > 1:
        end_job(code)
    return code


class _Hook:
    """In place of `sys.excepthook`, reports an exception by `report`, and ends the job."""

    def __init__(self, report: Callable[[type[BaseException], BaseException, TracebackType | None], object]) -> None:
        self._report = report

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        rank = environment.world().rank
        if isinstance(error, MpidlError) and error.everywhere:
            if rank == 0:
                say(str(error))
            raise SystemExit(error.exit_code)
        if rank > 0:
            time.sleep(AFTER_FIRST)
        if not isinstance(error, MpidlError):
            try:
                self._report(kind, error, trace)
            finally:
                attempt(lambda: say(f"rank {rank} raised {kind.__name__}, which ends the job"))
                end_job(130 if issubclass(kind, KeyboardInterrupt) else 1)
            return
        if os.environ.get("MPIDL_DEBUG"):
            attempt(lambda: show_traceback(error))
        attempt(lambda: say(f"rank {rank}: {error}"))
        end_job(error.exit_code)
        raise SystemExit(error.exit_code)


def _exit(status: Any = None, /) -> NoReturn:
    """Exit in place of ``sys.exit``."""
    raise _Exit(status)


class _Exit(SystemExit):
    """The exit of a rank: if nothing catches it, others may wait for the rank."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        # Without a caller in Python, the interpreter asks, which exits with this status.
        if name == "code" and value not in (None, 0) and sys._getframe().f_back is None:
            atexit.register(_join_others, int(value) if isinstance(value, int) else 1)
        return value


def _join_others(status: int) -> None:
    """Wait until all ranks exit with a status other than 0; after some seconds, end the job."""
    if os.environ.get(PROCESS) != str(os.getpid()) or (mpi := _mpi()) is None or mpi.Is_finalized():
        return
    rank = environment.world().rank
    last = time.monotonic() + FOR_OTHERS + min(rank, AFTER_FIRST)
    all_exit = mpi.COMM_WORLD.Ibarrier()
    while not all_exit.Test():
        if time.monotonic() > last:
            attempt(lambda: say(f"rank {rank} exited with status {status}, which ends the job"))
            end_job(status)
            return
        time.sleep(PASSING / 10)


#: Seconds in which a second SIGINT counts as the first: a terminal and a launcher may both send one for a Ctrl-C.
SAME = 0.5


@contextmanager
def undisturbed() -> Iterator[None]:
    """Turn off NumPy's warnings and spare the garbage collector the objects that exist already.

    A run checks its losses itself, and one line says which is not finite. Scanning what was imported, such as PyTorch,
    takes the collector as long as a step.
    """
    import numpy as np

    gc.freeze()
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            yield
    finally:
        gc.unfreeze()


@contextmanager
def stopping(interrupt: Callable[[int], None]) -> Iterator[None]:
    """Call `interrupt` with the number of each signal that asks to stop; a second Ctrl-C ends the process at once."""
    first: float | None = None

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        if number == signal.SIGINT:
            if first is None:
                first = time.monotonic()
            elif time.monotonic() - first > SAME:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
        interrupt(number)

    with handled(handle):
        yield


def end_stopped(advice: str) -> NoReturn:
    """End a script after a run that a signal has stopped, with the command's exit code and advice on how to continue.

    An interactive session goes on, as after Ctrl-C anywhere else.
    """
    from mpidl.runs.agreement import ranks

    if ranks()[0] == 0:
        if not environment.under_foreign_launcher():
            say(f"stopped by a signal, and saved; {advice}")
        marks.tell_done(STOPPED, environment.world().size)
    raise KeyboardInterrupt if hasattr(sys, "ps1") else SystemExit(STOPPED)
