"""A job whose processes can be found, waited for and killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

#: Seconds after which a job that doesn't go on is said to hang.
LIMIT = 60.0
#: Variables with a rank: Open MPI's, and that of MPICH and Intel MPI.
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
#: Seconds that processes may outlive the launcher.
OUTLIVING = 10.0


class RunningJob:
    """``mpidl train -n``, all of whose processes carry a mark in their environment; none outlives the context.

    Parameters
    ----------
    arguments : sequence
        Of mpidl.
    directory : Path
        Where it runs; its output goes into ``output`` there.
    environment : dict
    python : str
        That of the environment with the MPI library.
    host : callable
        Takes the words of a command, and returns those that run it on the launcher's host.
    """

    def __init__(
        self,
        arguments: list,
        directory: Path,
        environment: dict[str, str],
        python: str = sys.executable,
        host: Callable[[list[str]], list[str]] = list,
    ) -> None:
        self._mark = f"MARK_OF_A_JOB={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self.output = directory / "output"
        with self.output.open("wb") as output:
            self.launcher = subprocess.Popen(
                host([python, "-P", "-m", "mpidl", *map(str, arguments)]),
                cwd=directory, env=environment | {name: value}, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(self, *details: object) -> None:
        self.kill(random.Random(0))

    def processes(self, rank: int | None = None) -> list[int]:
        """Return the numbers of the job's processes, or of one rank's."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables = set((entry / "environ").read_bytes().split(b"\0"))
                own = rank is None or not variables.isdisjoint(f"{each}={rank}".encode() for each in RANKS)
                if own and self._mark.encode() in variables:
                    found.append(int(entry.name))
        return found

    def shared_files(self) -> set[Path]:
        """Return the files in shared memory that the job's processes map."""
        found = set()
        for process in self.processes():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{process}/maps").read_text().splitlines():
                    path = line.partition("/")[1] + line.partition("/")[2]
                    if path.startswith("/dev/shm/"):
                        found.add(Path(path))
        return found

    def wait_for(self, condition: Callable[[], object], seconds: float = LIMIT) -> bool:
        """Wait until something is true; return False if the job ends before."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.launcher.poll() is None:
            if condition():
                return True
            time.sleep(0.003)
        return False

    def wait(self, seconds: float = LIMIT) -> int | None:
        """Return the exit code, or None for a job that hangs or leaves processes behind, which are killed."""
        try:
            code = self.launcher.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        until = time.monotonic() + (0 if code is None else OUTLIVING)
        while self.processes():
            if time.monotonic() > until:
                self.kill(random.Random(0))
                return None
            time.sleep(0.1)
        return code

    def kill(self, chance: random.Random) -> None:
        """Kill all processes at once, in any order."""
        while processes := self.processes():
            chance.shuffle(processes)
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.launcher.wait()

    def last_words(self) -> str:
        """Return the last line that the job wrote."""
        lines = self.output.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
