"""While a job runs, its launcher hears the ranks, forwards signals to them, and judges in the end how it has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mpidl.launch import environment, keeper, marks
from mpidl.launch.job_output import Cause
from mpidl.launch.output import interject
from mpidl.launch.shared_memory import start
from mpidl.launch.signals import STOPPED, STOPPING

#: Exit codes of mpidl itself: done, failed, wrong arguments, saved and stopped.
OWN_CODES = (0, 1, 2, STOPPED)
NOTHING_LOST = "stopped before the training began; nothing is lost"

#: Seconds that mpirun has to end its ranks after a second Ctrl-C.
PATIENCE = 3.0
#: Seconds that ranks have to start after a signal that asks to stop, before they get it anyway.
START_PATIENCE = 60.0

#: The signal that makes mpirun end a job at once.
END = signal.SIGINT


class JobScreen(Protocol):
    """Shows a job's stderr and progress."""

    def hear(self, text: str) -> None:
        """Show the progress that a rank reports."""

    def write(self, text: bytes) -> None:
        """Show text."""

    def close(self) -> None:
        """End with the job."""


class Ended(NamedTuple):
    """How a job has ended.

    Attributes
    ----------
    code : int
        The exit code: 0, 1, 2 or 75.
    line : str
        A line on the cause, unless a rank or the launcher has written one.
    cause : Cause
        The cause in short, for a line on what follows.
    failed : bool
        Whether the job may succeed if it starts again.
    runs : sequence of Path
        The directories of the runs that it has begun, or gone on with.
    """

    code: int
    line: str = ""
    cause: Cause = Cause("")
    failed: bool = False
    runs: Sequence[Path] = ()


class Forwarding:
    """Forwards the signals `received` that ask this process to stop to a job, once it can handle them.

    The node of each rank, in `nodes`, is replaced when the job reports it. If the job `outlives` its processes, only a
    rank can say how it ends.
    """

    def __init__(self, screen: JobScreen, nodes: list[int], outlives: bool) -> None:
        self._screen, self.nodes, self._outlives = screen, nodes, outlives
        self.received: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._saved: int | None = None
        self._runs: list[Path] = []
        self._failure: tuple[Cause, bool] | None = None

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._lose_patience)

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Set the job's launcher, and forward signals received before."""
        self._process = process
        if self.received:
            self._forward()

    def hear(self, text: str) -> None:
        """Handle a message of a rank."""
        word, _, rest = text.partition(" ")
        if word == marks.READY:
            self._ready = True
            if self.received:
                signal.setitimer(signal.ITIMER_REAL, 0)
                self._forward()
        elif word == marks.NODES:
            self.nodes = marks.nodes_from_text(rest)
        elif word == marks.PROGRESS:
            self._screen.hear(rest)
        elif word == marks.SAVED:
            self._saved = int(rest)
        elif word == marks.RUN:
            self._runs.append(Path(json.loads(rest)))
        elif word == marks.FAILED and self._failure is None:
            cause, again, rank, role = json.loads(rest)
            self._failure = Cause(cause, rank, role), again

    def handle(self, number: int, frame: Any) -> None:
        """Handle a signal that asks to stop."""
        self.received.append(number)
        if len(self.received) == 1 and self._saved is None:
            hint = "; Ctrl-C again to end at once" if number == signal.SIGINT else ""
            interject(f"{signal.Signals(number).name}, saving and stopping{hint}")
        self._forward()

    @property
    def forced(self) -> bool:
        """Whether a second Ctrl-C asks to end at once."""
        return self.received.count(signal.SIGINT) > 1

    def _forward(self) -> None:
        if self._process is None:
            return
        if self.forced:
            if self._saved is None:
                self._process.send_signal(END)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        elif not self._ready:
            signal.setitimer(signal.ITIMER_REAL, START_PATIENCE)
        elif self._saved is None:
            self._process.send_signal(signal.SIGUSR1)

    def _lose_patience(self, number: int, frame: Any) -> None:
        assert self._process is not None
        if self.forced:
            end_session(self._process.pid)
        else:
            self._ready = True
            self._forward()

    def unnamed(self, code: int, launcher: str) -> Cause:
        """Describe the end of a job whose launcher returned `code` without naming a rank or a host."""
        if code < 0:
            return Cause(f"{launcher} was killed by {signal.Signals(-code).name}")
        several = len(set(self.nodes)) > 1
        what = "a rank died, or a host or the launcher's daemon there is lost" if several else "a rank died"
        if code == 0:
            what = f"the job ended before its work was done{': ' + what if several else ''}"
        elif not self._ready:
            what = "the job ended before all ranks had started"
        return Cause(f"{what}; {launcher} returned {code}")

    def survived(self) -> bool:
        """Return whether the work of a job that outlives its processes is done, so that no death matters any more."""
        return self._outlives and self._saved is not None

    def verdict(self, code: int, death: Cause) -> Ended:
        """Return how a job has ended whose launcher returned `code`.

        `death` is the report if a rank died. Only a rank can say that the work is done: Open MPI's launcher returns 0
        also when it loses a host.
        """
        own = code in OWN_CODES
        # A launcher that ends a job because a rank has died may ask the others to save and stop.
        final = self._outlives and (own or self._saved == 0)
        if self._saved is not None and (final or (self.received and not own)):
            return Ended(self._saved)
        # Codes of a launcher that, or whose rank, died of a signal that may have come before it could be blocked.
        early = {form for number in STOPPING[1:] for form in (128 + number, -number, number)} - {*OWN_CODES}
        if not self._ready and (self.forced or code in early):
            return Ended(STOPPED, NOTHING_LOST)
        lost = 1 if self.forced or environment.job() is None else STOPPED
        done = self._saved == 0 if code == 0 else code in OWN_CODES
        if self._failure is not None and self._saved is None and not self.received and code not in (2, STOPPED):
            cause, again = self._failure
            return Ended(1 if cause.rank is None else lost, "", cause, again, self._runs)
        if done and not (code == 1 and self.forced):
            failed = code == 1 and self._saved is None and not self.received
            return Ended(code, "", Cause("the job failed"), failed, self._runs)
        if self.received:
            return Ended(lost, "ended without saving")
        return Ended(lost, death.line, death, True, self._runs)


def identity() -> str:
    """Return what tells this launcher apart from all others of the node."""
    return f"{os.getpid()}.{start(os.getpid())}"


def wake_session(session: int) -> None:
    """Continue a job's stopped processes whose children have all ended, and that have only to report that.

    The `session` is that of its launcher.
    """
    found = list(_processes(session))
    for process, state, _ in found:
        if state == "T" and {each for _, each, parent in found if parent == process} == {"Z"}:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def end_session(session: int) -> None:
    """Kill all processes of a job, given its launcher's session, and wait for their ends, for `PATIENCE` at most."""
    until = time.monotonic() + PATIENCE
    while living := [each for each, state, _ in _processes(session) if state not in "ZX" and time.monotonic() < until]:
        for process in living:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.005)


def _processes(session: int) -> Iterator[tuple[int, str, int]]:
    """Yield the processes of a launcher's session, or of its keepers' sessions, each with its state and its parent."""
    found, sessions, mark = [], {session}, f"{keeper.LAUNCHER}={identity()}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent, _, own = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            found.append((int(own), (int(entry.name), state, int(parent))))
            # MPICH and Intel MPI give each rank a session.
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                sessions.add(int(own))
    yield from (process for own, process in found if own in sessions)
