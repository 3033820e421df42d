"""The hosts of a job's ranks where a file names them, and a job on those that still answer."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mpidl.launch.command import command
from mpidl.launch.output import interject
from mpidl.launch.shared_memory import own_directory, remove_at_exit

#: Variables that give launchers the file: Open MPI 5 and 4, and MPICH and Intel MPI.
FILES = ("PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE")
#: Seconds in which a host has to answer.
PATIENCE = 20.0


def leave_lost_hosts(ranks: int, fits: Callable[[int], bool]) -> int:
    """Take the hosts that don't answer out of the file; return the number of ranks for those that do.

    It is the same share of `ranks`, as far as `fits` allows that number. Nothing changes if no file names
    several hosts, or if none answers.
    """
    given = [each for each in FILES if os.environ.get(each)]
    places = _lines(os.environ[given[0]]) if given else []
    hosts = list(dict.fromkeys(_host(each) for each in places))
    if len(hosts) < 2:
        return ranks
    path = own_directory() / "hosts"
    answering = _answering(hosts, path, given)
    if not answering or len(answering) == len(hosts):
        return ranks
    left = [each for each in places if _host(each) in answering]
    path.write_text("".join(f"{each}\n" for each in left))
    remove_at_exit(path)
    os.environ.update(dict.fromkeys(given, str(path)))
    share = ranks * len(left) // len(places)
    fewer = next((each for each in (*range(share, 0, -1), *range(share + 1, ranks)) if fits(each)), ranks)
    lost = ", ".join(each for each in hosts if each not in answering)
    interject(f"no answer from {lost}: going on with {fewer} of {ranks} ranks on {', '.join(answering)}")
    return fewer


def _lines(file: str) -> list[str]:
    """Return the lines of a file that name a host."""
    try:
        text = Path(file).read_text()
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _host(line: str) -> str:
    """Return a line's host, without the number of its slots."""
    return line.split()[0].partition(":")[0]


def _answering(hosts: Sequence[str], path: Path, variables: Sequence[str]) -> list[str]:
    """Return the hosts on which the launcher can start a process."""
    started = []
    for number, host in enumerate(hosts):
        file = path.with_name(f"{path.name}-{number}")
        file.write_text(f"{host}\n")
        words, environment = command(1, [])
        words[words.index("-n") + 2 :] = ["true"]
        process = subprocess.Popen(
            words,
            env=environment | dict.fromkeys(variables, str(file)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        started.append((host, file, process))
    until = time.monotonic() + PATIENCE
    answering = []
    for host, file, process in started:
        try:
            if process.wait(max(0.0, until - time.monotonic())) == 0:
                answering.append(host)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        file.unlink()
    return answering
