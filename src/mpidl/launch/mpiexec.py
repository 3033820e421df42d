"""Start an MPI job from one process: `mpidl train -n`."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from mpidl.errors import MpidlError, UsageError
from mpidl.launch import environment, leftovers, marks
from mpidl.launch.command import command
from mpidl.launch.output import interject
from mpidl.launch.shared_memory import check_free, new_directory
from mpidl.launch.signals import STOPPED, STOPPING, handled
from mpidl.launch.stderr import Deaths, quieten
from mpidl.launch.stdout import Copied

#: Exit codes of mpidl itself: done, failed, wrong arguments, saved and stopped.
OWN_CODES = (0, 1, 2, STOPPED)
NOTHING_LOST = "stopped before the training began; nothing is lost"

#: Bytes that mpirun may need in the temporary directory; without them it dies of SIGBUS.
TEMPORARY = 1 << 20
#: Variables of the user's that say where Open MPI's mpirun makes its directory; the first is that of this machine.
SESSIONS = ("PRTE_MCA_prte_local_tmpdir_base", "PRTE_MCA_prte_tmpdir_base", "PRTE_MCA_prte_top_session_dir")

#: Bytes of memory that every rank needs at least.
RANK_BYTES = 50_000_000

#: Seconds that mpirun has to end its ranks after a second Ctrl-C.
PATIENCE = 3.0
#: Seconds that ranks have to start after a signal that asks to stop, before they get it anyway.
START_PATIENCE = 60.0
#: The signal that makes mpirun end a job at once; others that would too, and that schedulers send to every process.
END, BLOCKED = signal.SIGINT, (signal.SIGTERM, signal.SIGHUP)


class Screen(Protocol):
    """Shows a job's stderr and progress."""

    def hear(self, text: str) -> None:
        """Show the progress that a rank reports."""

    def write(self, text: bytes) -> None:
        """Show text."""

    def close(self) -> None:
        """End with the job."""


def launch(
    ranks: int,
    arguments: Sequence[str],
    screen: Screen,
    role: Callable[[int, Sequence[int]], str] = lambda rank, nodes: "",
) -> int:
    """Run ``mpidl ARGUMENTS`` on the ranks of an MPI job, and wait until it ends; return the job's exit code.

    It is 0, 1, 2 or 75. A scheduler's job that has lost a rank, a host or its launcher also ends with 75: it can
    continue when it is queued again. A job whose stdout can't be written doesn't return 0. `screen` shows the job's
    stderr and progress; `role` returns the role of a rank, given the nodes of all, for messages about it; ``""`` if it
    is unknown.

    The `STOPPING` signals ask the ranks to save and stop: each rank gets SIGUSR1 as soon as all have started and can
    handle it. The same happens when the reader of this process's stderr goes away. Before the job's start, they prevent
    it; after the run has saved, they have no effect. A second SIGINT ends the ranks at once. No process of the job
    outlives this call or this process.

    Raise UsageError if there is no mpirun, or too little memory for the ranks, and MpidlError if the temporary
    directory is full or can't be written.
    """
    _check_memory(ranks)
    forwarding = _Forwarding(screen, [0] * ranks)
    deaths = Deaths(lambda rank: role(rank, forwarding.nodes), lambda: len(set(forwarding.nodes)) > 1)
    with handled(forwarding.handle), forwarding:
        words, variables = command(ranks, ["-P", "-m", "mpidl", *arguments])
        variables |= {marks.VARIABLE: "1", marks.TERMINAL: "1" if os.isatty(2) else ""}
        variables[marks.COMMAND] = shlex.join(["mpidl", *sys.argv[1:]])
        temporary = variables.get("TMPDIR", "/tmp")
        check_free(temporary, TEMPORARY, "mpirun", "empty it, or set TMPDIR to another directory")
        if forwarding.received:
            interject(NOTHING_LOST)
            return STOPPED
        own = _own_temporary(temporary)
        if not any(each in variables for each in SESSIONS):
            variables[SESSIONS[0]] = own
        process = subprocess.Popen(
            words,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_prepare_child(),
        )
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            copied = Copied(process.stdout)
            try:
                forwarding.to(process)
                for text in quieten(marks.listen(deaths.watch(_chunks(process.stderr)), forwarding.hear)):
                    screen.write(text)
                code = process.wait()
            finally:
                screen.close()
                _end_session(process.pid)
                shutil.rmtree(own, ignore_errors=True)  # An mpirun that was killed leaves its directory there.
                if process.wait():
                    leftovers.sweep()
            copied.end(lambda: forwarding.forced)
        code = forwarding.verdict(code, deaths.cause() or forwarding.unnamed(code, Path(words[0]).name))
        if (why := copied.lost(needed="--json" in arguments)) is not None:
            hint = "; a run's directory has its summary in summary.json" if arguments[0] in ("train", "run") else ""
            interject(f"stdout: {why}, output of the job is lost{hint}")
        return code if why is None else code or 1


def _check_memory(ranks: int) -> None:
    """Raise UsageError if this machine hasn't the memory for `ranks` ranks; under a scheduler there may be others."""
    if environment.job() is not None:
        return
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if ranks * RANK_BYTES > present:
        need, has = (f"{nbytes / 1e9:.3g} GB" for nbytes in (ranks * RANK_BYTES, present))
        raise UsageError(f"-n {ranks}: {ranks} ranks need {need} of memory, this machine has {has}")


def _own_temporary(place: str) -> str:
    """Return a new directory in a temporary one, which only this user can enter, for what the launcher makes.

    Open MPI's mpirun takes a name that others can guess, and uses a directory that it finds there.
    """
    try:
        own = str(new_directory(place, "mpidl."))
    except OSError as error:
        raise MpidlError(
            f"mpirun: no directory can be made in {place}: {error.strerror}; set TMPDIR to another"
        ) from error
    leftovers.note(own)
    return own


def _prepare_child() -> Callable[[], None]:
    """Return the preparation of mpirun's process: it ends with its parent, and ignores signals other than `END`.

    Open MPI's mpirun kills its ranks half a second after SIGTERM, SIGHUP or SIGINT, and has no setting for that.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    set_death_signal = 1  # PR_SET_PDEATHSIG

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        if prctl is not None:
            prctl(set_death_signal, END)

    return prepare


class _Forwarding:
    """Forwards the signals `received` that ask this process to stop to a job, once it can handle them.

    The node of each rank, in `nodes`, is replaced when the job reports it.
    """

    def __init__(self, screen: Screen, nodes: list[int]) -> None:
        self._screen, self.nodes = screen, nodes
        self.received: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._saved: int | None = None

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
            _end_session(self._process.pid)
        else:
            self._ready = True
            self._forward()

    def unnamed(self, code: int, launcher: str) -> str:
        """Describe the end of a job whose launcher returned `code` without naming a rank or a host."""
        if code < 0:
            return f"{launcher} was killed by {signal.Signals(-code).name}"
        several = len(set(self.nodes)) > 1
        what = "a rank died, or a host or the launcher's daemon there is lost" if several else "a rank died"
        if code == 0:
            what = f"the job ended before its work was done{': ' + what if several else ''}"
        elif not self._ready:
            what = "the job ended before all ranks had started"
        return f"{what}; {launcher} returned {code}"

    def verdict(self, code: int, death: str) -> int:
        """Return the exit code of a job whose launcher returned `code`, and report how it ended if no rank has.

        `death` is the report if a rank died. Only a rank can say that the work is done: Open MPI's launcher returns 0
        also when it loses a host.
        """
        if self._saved is not None and self.received and code not in OWN_CODES:
            return self._saved
        # Codes of a launcher that, or whose rank, died of a signal that may have come before it could be blocked.
        early = {form for number in STOPPING[1:] for form in (128 + number, -number, number)} - {*OWN_CODES}
        if not self._ready and (self.forced or code in early):
            interject(NOTHING_LOST)
            return STOPPED
        done = self._saved == 0 if code == 0 else code in OWN_CODES
        if done and not (code == 1 and self.forced):
            return code
        interject("ended without saving" if self.received else death)
        return 1 if self.forced or environment.job() is None else STOPPED


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := os.read(stream.fileno(), 65536):
        yield chunk


def _end_session(session: int) -> None:
    """Kill all processes of a session."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
