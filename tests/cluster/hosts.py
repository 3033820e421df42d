"""Hosts on one machine: namespaces of their own for network, name, processes and shared memory, joined by a bridge.

Needs Linux, root, iproute2 and util-linux. What a host's processes say to another's crosses an emulated network.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

#: The bridge's address is .1, host 1's .11 and so on.
NETWORK, BRIDGE = "10.77.0", "02:00:00:00:00:01"
#: What keeps the namespaces of a host alive: its first process, which ends when nothing holds its stdin open any more.
#: Temporary files and shared memory are the host's own, and processes left to it need nobody who waits for them.
#: Hosts control congestion as a cluster's do, whatever this machine does: BBR, which paces by timers, takes three times
#: the processor time. No firewall looks at what they send each other.
FIRST = """
hostname "$1" && mount -t sysfs sysfs /sys && mount --bind "$2" /etc/hosts
echo cubic 2> /dev/null > /proc/sys/net/ipv4/tcp_congestion_control || :
for each in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -w $each ] || echo 0 > $each; done
for each in /dev/shm /var/tmp; do mount -t tmpfs -o mode=1777 tmpfs $each; done
while [ $# -gt 2 ]; do mount --bind "$3" "$4"; shift 2; done
trap '' CHLD
echo up
exec cat > /dev/null
"""
#: Stands for ssh: called as AGENT [OPTIONS] HOST COMMAND...
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
process=$(cat "%s/$1.process"); shift
exec nsenter -t "$process" -n -u -i -m -p --wd="$PWD" sh -c "$*"
"""
#: Hosts share the machine's cores, of which neither Open MPI nor Intel MPI knows. Unless ranks that wait yield them, a
#: barrier takes milliseconds.
YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1", "I_MPI_THREAD_YIELD": "2"}
#: What network namespaces may control congestion by.
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
PROGRAMS = ("ip", "unshare", "nsenter", "mount", "hostname")


def lacking() -> str | None:
    """Return what this machine lacks for hosts; None if it has all."""
    if sys.platform != "linux" or os.geteuid():
        return "root on Linux"
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing:
        return f"the program {missing[0]}"
    tried = "mount -t sysfs sysfs /sys && ip link add name br0 type bridge && ip link add v1 type veth peer name v2"
    words = [*unshare("ipc", "pid"), "sh", "-c", tried]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    return f"permission for namespaces ({done.stderr.strip()})" if done.returncode else None


@contextlib.contextmanager
def cubic_allowed() -> Iterator[None]:
    """Let network namespaces control congestion by cubic, where this machine allows them less."""
    before = ""
    with contextlib.suppress(OSError):
        before = ALLOWED.read_text()
        ALLOWED.write_text(f"{before.strip()} cubic")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            ALLOWED.write_text(before)


def unshare(*more: str) -> list[str]:
    """Return what starts a command in namespaces of its own."""
    of_processes = ["--fork", "--kill-child", "--mount-proc"] if "pid" in more else []
    kinds = [f"--{kind}" for kind in ("net", "uts", "mount", *more)]
    return ["unshare", *kinds, "--propagation=private", *of_processes]


class Hosts:
    """Hosts ``node1``, ``node2``, ... and ``head``, from which commands are started.

    Parameters
    ----------
    directory : Path
        Keeps what the hosts need.
    count : int
        Number of hosts, 9 at most.
    over : mapping of str to Path
        Directories that appear in place of others.

    Attributes
    ----------
    names : list of str
    addresses : dict of str to str
    """

    def __init__(self, directory: Path, count: int, over: Mapping[str, Path] | None = None) -> None:
        self.directory, self.names = directory, [f"node{number + 1}" for number in range(count)]
        self.addresses = {"head": f"{NETWORK}.1"} | {
            name: f"{NETWORK}.{11 + number}" for number, name in enumerate(self.names)
        }
        self._over = dict(over or {})
        self._first: dict[str, subprocess.Popen[str]] = {}
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Hosts:
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self.addresses.items())]
        (self.directory / "hosts").write_text("\n".join(lines) + "\n")
        (self.directory / "agent").write_text(AGENT % self.directory)
        (self.directory / "agent").chmod(0o755)
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            # From the head all processes are seen: it has no process namespace of its own.
            self._begin("head")
            # Else the bridge's address would change with its hosts, and those that are left would not find the head.
            self._ip("link set lo up", f"link add name br0 address {BRIDGE} type bridge", "link set br0 up")
            self._ip(f"addr add {NETWORK}.1/24 dev br0")
            for name in self.names:
                self.start(name)
            stack.pop_all()
        return self

    def __exit__(self, *details: object) -> None:
        self._end()

    def start(self, name: str) -> None:
        """Start a host: at first, or again after a crash."""
        process, number = self._begin(name, "ipc", "pid"), self.names.index(name) + 1
        self._ip(f"link add name v{number} type veth peer name eth0 netns {process}")
        self._ip(f"link set v{number} master br0 up")
        address = f"addr add {self.addresses[name]}/24 dev eth0"
        self._ip(address, "link set eth0 up", "link set lo up", host=name)

    def crash(self, name: str) -> None:
        """Crash a host: its processes end at once, and its address answers no more."""
        os.kill(self.process(name), signal.SIGKILL)
        self._first.pop(name).communicate()
        self._ip(f"link del v{self.names.index(name) + 1}", check=False)

    def process(self, name: str) -> int:
        """Return the number of a host's first process."""
        return int((self.directory / f"{name}.process").read_text())

    def words(self, command: Sequence[object], host: str = "head") -> list[str]:
        """Return the words that run a command on a host, in the present directory."""
        own = ["-n", "-u", "-m"] if host == "head" else ["-n", "-u", "-i", "-m", "-p"]
        return ["nsenter", "-t", str(self.process(host)), *own, f"--wd={Path.cwd()}", *map(str, command)]

    def run(self, command: Sequence[object], host: str = "head", check: bool = True, **options: object) -> str:
        """Run a command on a host; return its stdout without the last line's end."""
        done = subprocess.run(
            self.words(command, host), text=True, capture_output=True, check=False, **{"timeout": 60, **options}
        )
        if check and done.returncode:
            raise RuntimeError(f"{shlex.join(map(str, command))}: {done.returncode}, {done.stderr}{done.stdout}")
        return done.stdout.rstrip("\n")

    def begin(self, command: Sequence[object], host: str = "head", **options: object) -> subprocess.Popen[str]:
        """Start a command on a host; it ends with the hosts at the latest."""
        started = subprocess.Popen(
            self.words(command, host), text=True, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent(), **options
        )
        self._started.append(started)
        return started

    def _begin(self, name: str, *kinds: str) -> int:
        """Start a host's first process; return its number."""
        over = [str(each) for target, source in self._over.items() for each in (source, target)]
        with cubic_allowed():
            first = subprocess.Popen(
                [*unshare(*kinds), "sh", "-ec", FIRST, "sh", name, str(self.directory / "hosts"), *over],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            self._first[name] = first
            assert first.stdout is not None
            if first.stdout.readline() != "up\n":
                raise RuntimeError(f"{name} does not start")
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        process = int(children[0]) if kinds else first.pid
        (self.directory / f"{name}.process").write_text(str(process))
        return process

    def _ip(self, *lines: str, host: str = "head", check: bool = True) -> None:
        words = ["nsenter", "-t", str(self.process(host)), "-n", "ip", "-batch", "-"]
        subprocess.run(words, input="\n".join(lines), text=True, check=check, capture_output=True)

    def _end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for first in self._first.values():
            first.communicate()


def until(condition: Callable[[], object], seconds: float = 300.0, every: float = 0.05) -> None:
    """Wait until something is true.

    Raises
    ------
    TimeoutError
        It isn't within `seconds`.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(every)


def _end_with_parent() -> Callable[[], object]:
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
