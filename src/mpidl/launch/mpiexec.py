"""Start an MPI job from one process: `mpidl train -n`."""

from __future__ import annotations

import ctypes
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from mpidl.errors import MpidlError, UsageError
from mpidl.launch import environment, keeper, leftovers, marks
from mpidl.launch.command import command, leave_lost_hosts, on_one_node
from mpidl.launch.forwarding import END, NOTHING_LOST, Ended, Forwarding, JobScreen, end_session, identity, wake_session
from mpidl.launch.job_output import Copied, Deaths, quieten
from mpidl.launch.output import interject
from mpidl.launch.shared_memory import check_free, new_directory
from mpidl.launch.signals import STOPPED, STOPPING, handled

#: Bytes that mpirun may need in the temporary directory; without them it dies of SIGBUS.
TEMPORARY = 1 << 20
#: Variables of the user's that say where Open MPI's mpirun makes its directory; the first is that of this machine.
SESSIONS = ("PRTE_MCA_prte_local_tmpdir_base", "PRTE_MCA_prte_tmpdir_base", "PRTE_MCA_prte_top_session_dir")

#: Name of the file that the keepers of a job's ranks lock, in the job's temporary directory.
KEEPERS = "keepers"
#: Bytes of memory that every rank needs at least.
RANK_BYTES = 50_000_000
#: Seconds without output after which processes are woken that have only to report an end.
QUIET = 3.0

#: Signals other than `END` that make mpirun end a job at once, and that schedulers send to every process.
BLOCKED = (signal.SIGTERM, signal.SIGHUP)


def launch(
    ranks: int,
    arguments: Sequence[str],
    screen: JobScreen,
    role: Callable[[int, Sequence[int]], str] = lambda rank, nodes: "",
    again: Callable[[Ended], Sequence[str] | None] = lambda ended: None,
    outlives: bool = False,
    fits: Callable[[int], bool] = lambda ranks: True,
) -> int:
    """Run ``mpidl ARGUMENTS`` on the ranks of an MPI job, and wait until it ends; return the job's exit code.

    It is 0, 1, 2 or 75. A scheduler's job that has lost a rank, a host or its launcher also ends with 75: it can
    continue when it is queued again. A job whose stdout can't be written doesn't return 0. `screen` shows the job's
    stderr and progress; `role` returns the role of a rank, given the nodes of all, for messages about it; ``""`` if it
    is unknown. `again` takes the end of each job, and returns the arguments of the next, or None.
    It has fewer ranks if hosts are lost, as far as `fits` says that all of them have work. A job that `outlives` its
    processes isn't ended by the launcher when one dies, if all are on one node.

    The `STOPPING` signals ask the ranks to save and stop: each rank gets SIGUSR1 as soon as all have started and can
    handle it. The same happens when the reader of this process's stderr goes away. Before the job's start, they prevent
    it; after the run has saved, they have no effect. A second SIGINT ends the ranks at once. No process of the job
    outlives this call or this process.

    Raise UsageError if there is no mpirun, or too little memory for the ranks, and MpidlError if the temporary
    directory is full or can't be written.
    """
    _check_memory(ranks)
    following: Sequence[str] | None = arguments
    while following is not None:
        ended = _run(ranks, following, screen, role, outlives and on_one_node(os.environ))
        if (following := again(ended)) is not None:
            ranks = leave_lost_hosts(ranks, fits)
    if ended.line:
        interject(ended.line)
    return ended.code


def _run(
    ranks: int, arguments: Sequence[str], screen: JobScreen, role: Callable[[int, Sequence[int]], str], outlives: bool
) -> Ended:
    """Run a job, and wait until it ends."""
    forwarding = Forwarding(screen, [0] * ranks, outlives)
    deaths = Deaths(lambda rank: role(rank, forwarding.nodes), lambda: len(set(forwarding.nodes)) > 1)
    with handled(forwarding.handle), forwarding:
        words, variables = command(ranks, ["-P", "-m", "mpidl", *arguments])
        variables |= {marks.VARIABLE: identity(), marks.TERMINAL: "1" if os.isatty(2) else ""}
        variables[marks.COMMAND] = shlex.join(["mpidl", *sys.argv[1:]])
        temporary = variables.get("TMPDIR", "/tmp")
        check_free(temporary, TEMPORARY, "mpirun", "empty it, or set TMPDIR to another directory")
        if forwarding.received:
            return Ended(STOPPED, NOTHING_LOST)
        own = _own_temporary(temporary)
        if not any(each in variables for each in SESSIONS):
            variables[SESSIONS[0]] = own
        if outlives:
            variables[keeper.VARIABLE] = f"{own}/{KEEPERS}"
            Path(own, KEEPERS).touch()
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
            copied = Copied(process.stdout, forwarding.survived)
            try:
                forwarding.to(process)
                chunks = _chunks(process.stderr, lambda: wake_session(process.pid))
                stderr = marks.listen(deaths.watch(chunks), forwarding.hear)
                for text in quieten(stderr, forwarding.survived):
                    screen.write(text)
                code = process.wait()
            finally:
                screen.close()
                end_session(process.pid)
                shutil.rmtree(own, ignore_errors=True)  # An mpirun that was killed leaves its directory there.
                if process.wait():
                    leftovers.sweep()
            copied.end(lambda: forwarding.forced)
        ended = forwarding.verdict(code, deaths.cause() or forwarding.unnamed(code, Path(words[0]).name))
        if (why := copied.lost(needed="--json" in arguments)) is not None:
            hint = "; a run's directory has its summary in summary.json" if arguments[0] in ("train", "run") else ""
            interject(f"stdout: {why}, output of the job is lost{hint}")
            ended = ended._replace(code=ended.code or 1)
        return ended


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


def _chunks(stream: IO[bytes], idle: Callable[[], object]) -> Iterator[bytes]:
    """Yield what arrives in a stream; call `idle` when nothing has arrived for `QUIET` seconds."""
    while True:
        while not select.select([stream], [], [], QUIET)[0]:
            idle()
        if not (chunk := os.read(stream.fileno(), 65536)):
            return
        yield chunk
