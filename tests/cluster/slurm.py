"""A real Slurm on hosts of one machine: one controller, and a daemon on each host."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hosts import YIELDING, Hosts, until

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "scancel")
#: Seconds until Slurm misses a host, and until a job that is queued again may start.
MISSED, AGAIN = 10, 5
CONFIGURATION = """
ClusterName=test
SlurmctldHost=head({head})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket,cred_expire={again}
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
StateSaveLocation={directory}/state
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmdLogFile={directory}/slurmd.%n.log
SlurmdSpoolDir={directory}/spool/%n
TmpFS=/var/tmp
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MpiDefault=none
JobRequeue=1
ReturnToService=2
MailProg=/bin/true
KillWait=2
SlurmdTimeout={missed}
"""
NODE = "NodeName={name} NodeAddr={address} CoresPerSocket={cores} RealMemory=1000 State=UNKNOWN\n"
PARTITION = "PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP\n"
#: The daemons want a cgroup plugin even if nothing uses it.
CGROUPS = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


def lacking() -> str | None:
    """Return what this machine lacks for Slurm; None if it has all."""
    missing = [each for each in PROGRAMS if shutil.which(each, path=_path()) is None]
    return f"the program {missing[0]}" if missing else None


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def pmix(directory: Path) -> dict[str, Path]:
    """Return what must appear in place of what, for Slurm to find PMIx: Debian's has not the name that it looks for."""
    over = {}
    for path in Path("/usr/lib").glob("*/pmix*/lib"):
        if not (path / "libpmix.so").exists() and (path / "libpmix.so.2").exists():
            copy = directory / "pmix"
            shutil.copytree(path, copy, symlinks=True)
            (copy / "libpmix.so").symlink_to("libpmix.so.2")
            over[str(path)] = copy
    return over


class Slurm:
    """Slurm on hosts, for as long as they last.

    Parameters
    ----------
    hosts : Hosts
    cores : int
        Of each host.
    """

    def __init__(self, hosts: Hosts, cores: int) -> None:
        self.hosts, self._cores = hosts, cores
        self._directory = hosts.directory
        self._daemons: dict[str, subprocess.Popen[str]] = {}
        # Launchers name their directories by process numbers, which come again with each start of a host. If hosts
        # shared temporary files, what a killed daemon left would refuse the next one of its number.
        self.environment = {"SLURM_CONF": str(self._directory / "slurm.conf"), "TMPDIR": "/var/tmp", **YIELDING}

    def start(self) -> None:
        """Start all daemons, and wait until the hosts are ready."""
        for name in ("munge", "state"):
            (self._directory / name).mkdir(mode=0o755)
        key = self._directory / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        files = [f"--{option}={self._directory}/munge/{file}" for option, file in options.items()]
        self._daemon("munged", ["munged", "--foreground", "--force", *files], "head")
        until((self._directory / "munge" / "socket").exists)
        (self._directory / "slurm.conf").write_text(self._configuration())
        (self._directory / "cgroup.conf").write_text(CGROUPS)
        self._daemon("slurmctld", ["slurmctld", "-D", "-c", "-i"], "head")
        for name in self.hosts.names:
            self.start_host(name)
        until(lambda: self.states().count("idle") == len(self.hosts.names), every=0.2)

    def start_host(self, name: str) -> None:
        """Start the daemon of a host, whose disk is empty."""
        spool = self._directory / "spool" / name
        shutil.rmtree(spool, ignore_errors=True)
        spool.mkdir(parents=True)
        self._daemon(f"slurmd.{name}", ["slurmd", "-D", "-N", name], name)

    def run(self, *command: object, check: bool = True, **variables: str) -> str:
        """Run a command on the head; return its stdout."""
        return self.hosts.run(command, check=check, env=self._environment() | variables)

    def begin(self, *command: object, **options: object) -> subprocess.Popen[str]:
        """Begin a command on the head."""
        return self.hosts.begin(command, env=self._environment(), **options)

    def attempt(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a command on the head that may fail."""
        words = self.hosts.words(command)
        return subprocess.run(words, env=self._environment(), text=True, capture_output=True, timeout=300, check=False)

    def states(self) -> list[str]:
        """Return the state of each host."""
        return self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()

    def job(self, number: str) -> Mapping[str, str]:
        """Return what Slurm knows of a job."""
        text = self.run("scontrol", "show", "job", number, check=False)
        return dict(word.partition("=")[::2] for word in text.split() if "=" in word)

    def wait(self, number: str, state: str, seconds: float = 300.0) -> Mapping[str, str]:
        """Wait until a job is in a state; return what Slurm knows of it."""
        until(lambda: self.job(number).get("JobState") == state, seconds, 0.2)
        return self.job(number)

    def last_words(self) -> str:
        """Return the last line that each daemon has written."""
        last = {each.stem: each.read_text().splitlines()[-1:] for each in sorted(self._directory.glob("*.output"))}
        return "; ".join(f"{name}: {lines[0]}" for name, lines in last.items() if lines)

    def _configuration(self) -> str:
        addresses = self.hosts.addresses
        values = {"head": addresses["head"], "directory": self._directory, "missed": MISSED, "again": AGAIN}
        nodes = [NODE.format(name=name, address=addresses[name], cores=self._cores) for name in self.hosts.names]
        return CONFIGURATION.format(**values) + "".join(nodes) + PARTITION.format(nodes=",".join(self.hosts.names))

    def _environment(self) -> dict[str, str]:
        return dict(os.environ) | self.environment | {"PATH": _path()}

    def _daemon(self, name: str, command: Sequence[str], host: str) -> None:
        with (self._directory / f"{name}.output").open("ab") as output:
            self.hosts.begin(command, host, env=self._environment(), stdout=output, stderr=output)
