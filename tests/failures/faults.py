"""What may happen to a job: processes that die, stop, run out of something; hosts, links and launchers that go."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs_apart import parent
from running_job import RunningJob

from mpidl.topology.roles import Roles

#: Names of launchers' processes, and of those that they have on other hosts.
LAUNCHERS = ("mpirun", "prterun", "mpiexec", "mpiexec.hydra")
DAEMONS = ("prted", "hydra_pmi_proxy", "hydra_bstrap_proxy")
#: Seconds for which a link is cut, and for which a slow rank is slow.
CUT, SLOW = 20.0, 3.0
#: Largest number of seconds between a death and another that falls into its aftermath.
AFTERMATH = 0.3


@dataclass
class Target:
    """A job that something happens to.

    Attributes
    ----------
    job : RunningJob
    chance : random.Random
    roles : list of str
        The kind of role of each rank.
    scratch : Path
        The directory in which checkpoints appear.
    hosts : object, optional
        The emulated hosts (``tests/cluster/hosts.py``) that the job runs on.
    struck : list of float
        When something happened, in seconds since the epoch.
    deeds : list of str
        What happened.
    """

    job: RunningJob
    chance: random.Random
    roles: Sequence[str]
    scratch: Path
    hosts: Any = None
    struck: list[float] = field(default_factory=list)
    deeds: list[str] = field(default_factory=list)

    def ranks(self, role: str = "") -> list[int]:
        """Return the ranks with a role, or all, in random order."""
        found = [rank for rank, each in enumerate(self.roles) if each == (role or each)]
        return self.chance.sample(found, len(found))

    def send(self, ranks: Sequence[int], number: signal.Signals) -> None:
        """Send a signal to all processes of ranks, at one moment."""
        processes = [process for rank in ranks for process in self.job.processes(rank)]
        self.hit(processes, number, ", ".join(f"rank {rank} ({self.roles[rank]})" for rank in ranks))

    def hit(self, processes: Sequence[int], number: signal.Signals, name: str) -> None:
        """Send a signal to processes."""
        self.note(f"{number.name} to {name}")
        self.hit_quietly(processes, number)

    @staticmethod
    def hit_quietly(processes: Sequence[int], number: signal.Signals) -> None:
        """Send a signal that is no deed of its own to processes."""
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def note(self, deed: str) -> None:
        """Note that something happens now."""
        self.struck.append(time.time())
        self.deeds.append(deed)

    def limit(self, rank: int, kind: int, size: Callable[[int], int], name: str) -> None:
        """Limit a resource of a rank's processes to a size, given the bytes of memory that each has."""
        self.note(f"{name} for rank {rank} ({self.roles[rank]})")
        for process in self.job.processes(rank):
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{process}/statm").read_text().split()[0])
                most = size(pages * resource.getpagesize())
                resource.prlimit(process, kind, (most, most))

    def stop(self, rank: int, seconds: float) -> None:
        """Stop a rank's processes for some seconds."""
        self.send([rank], signal.SIGSTOP)
        # Processes of the rank that follow, after a restart, were not stopped.
        stopped = self.job.processes(rank)
        time.sleep(seconds)
        self.hit_quietly(stopped, signal.SIGCONT)

    def slow(self, rank: int) -> None:
        """Let a rank's processes run for a fifth of the time only."""
        self.note(f"rank {rank} ({self.roles[rank]}) is slow")
        processes, until = self.job.processes(rank), time.time() + SLOW
        while time.time() < until:
            for number, seconds in ((signal.SIGSTOP, 0.2), (signal.SIGCONT, 0.05)):
                self.hit_quietly(processes, number)
                time.sleep(seconds)

    def kill_keeper(self, rank: int) -> None:
        """Kill the keeper of a rank's process: the launcher ends the job."""
        keepers = {parent(process) for process in self.job.processes(rank)} - {self.job.launcher.pid}
        self.hit(sorted(keepers), signal.SIGKILL, f"the parent of rank {rank} ({self.roles[rank]})")

    def named(self, names: Sequence[str]) -> list[int]:
        """Return those of the job's processes that have one of some names."""
        found = []
        for process in self.job.processes():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process}/comm").read_text().strip() in names:
                    found.append(process)
        return found

    def wait_for_save(self) -> None:
        """Wait until a checkpoint is being written."""
        self.job.wait_for(lambda: any(self.scratch.glob(".*")), 20.0)
        time.sleep(self.chance.uniform(0, 0.02))

    def several(self, count: int) -> list[int]:
        """Return some ranks, but not all workers."""
        spared = self.ranks("worker")[0]
        return [rank for rank in self.ranks() if rank != spared][:count]


def kinds_of(roles: Roles) -> list[str]:
    """Return the kind of role of each rank: "coordinator", "server", "worker" or "standby"."""
    return [name.split()[0] for name in roles.names()]


def _kill(role: str) -> Callable[[Target], None]:
    return lambda target: target.send(target.ranks(role)[:1], signal.SIGKILL)


def _kill_several(count: int) -> Callable[[Target], None]:
    return lambda target: target.send(target.several(count), signal.SIGKILL)


def _saving(target: Target) -> None:
    target.wait_for_save()
    target.send(target.ranks()[:1], signal.SIGKILL)


def _drain(target: Target) -> None:
    target.send(target.ranks("worker")[:1], signal.SIGTERM)


def _aftermath(target: Target) -> None:
    first, second = target.several(2)
    target.send([first], signal.SIGKILL)
    time.sleep(target.chance.uniform(0, AFTERMATH))
    target.send([second], signal.SIGKILL)


def _disk(target: Target) -> None:
    # A file that can't grow is a full disk's, and no other program of the machine suffers.
    target.limit(target.ranks()[0], resource.RLIMIT_FSIZE, lambda size: 1024, "no space on the disk")


def _memory(target: Target) -> None:
    target.limit(target.ranks()[0], resource.RLIMIT_AS, lambda size: size, "no more memory")


def _launcher(target: Target) -> None:
    if target.chance.random() < 0.5:
        target.hit([target.job.launcher.pid], signal.SIGKILL, "mpidl, the launcher")
    else:
        target.hit(target.named(LAUNCHERS), signal.SIGKILL, "mpirun")


def _daemon(target: Target) -> None:
    target.hit(target.named(DAEMONS)[:1], signal.SIGKILL, "the launcher's daemon of a host")


def _host(target: Target) -> None:
    name = target.hosts.names[-1]
    target.note(f"host {name} crashes")
    target.hosts.crash(name)


def _link(target: Target) -> None:
    number = len(target.hosts.names)
    target.note(f"the link of {target.hosts.names[-1]} is cut")
    for state, seconds in (("down", CUT), ("up", 0.0)):
        target.hosts.run(["ip", "link", "set", f"v{number}", state])
        time.sleep(seconds)


#: The faults by name; those that need several hosts; those that need one, where a worker may leave; and those after
#: which a job may end, to be resumed by hand.
FAULTS: Mapping[str, Callable[[Target], None]] = {
    "worker": _kill("worker"),
    "server": _kill("server"),
    "coordinator": _kill("coordinator"),
    "two": _kill_several(2),
    "three": _kill_several(3),
    "drain": _drain,
    "keeper": lambda target: target.kill_keeper(target.ranks()[0]),
    "saving": _saving,
    "aftermath": _aftermath,
    "stop2": lambda target: target.stop(target.ranks()[0], 2.0),
    "stop10": lambda target: target.stop(target.ranks()[0], 10.0),
    "slow": lambda target: target.slow(target.ranks()[0]),
    "disk": _disk,
    "memory": _memory,
    "launcher": _launcher,
    "daemon": _daemon,
    "host": _host,
    "link": _link,
}
OF_HOSTS, ON_ONE = ("daemon", "host", "link"), ("drain",)
ENDING = ("disk", "memory", "launcher")


def applicable(roles: Sequence[str], hosts: bool) -> Iterator[str]:
    """Yield the names of the faults that can happen to a job with these roles, on one host or several."""
    for name in FAULTS:
        enough = name not in ("two", "three", "aftermath") or len(roles) > (4 if name == "three" else 3)
        if enough and name not in (ON_ONE if hosts else OF_HOSTS):
            yield name
