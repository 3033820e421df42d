"""Whole jobs, started as users start them, are struck by a fault at a random moment: what becomes of them.

    python benchmarks/chaos.py [--runs 100] [--seed 0] [--mpi openmpi mpich impi] [--faults NAME ...]
                               [--points [NAME ...]] [--ranks 5] [--servers 2] [--hosts 2] [--retries 2] [--mpirun]
                               [--set SECTION.KEY=VALUE ...] [--keep DIR] [--json]
                               [--goodput SECONDS [--every 29]]

Most jobs count: parameter i is how often sample i was applied, so that the last checkpoint shows what was lost or
applied twice; they also record when each gradient begins. The others train a network on the digits, for its accuracy.
With --hosts, ranks are on emulated hosts (as root), and daemons, hosts and links may go, too. With --points, a rank of
each role that passes a point of mpidl.launch.fault_points dies there, instead of faults at random moments. With
--goodput, one long run is struck again and again, and compared with one that isn't (chaos_goodput.py).

A job has survived if no process had to take over another's work, is taken over, or restarted (--retries); or it is
lost, which means that it ended with a line that says why, or hung. The time to notice is that from the fault to the
event of the failure; the time to the next update is that to the begin of a worker's second gradient since the fault:
what it pushed in between has been applied by all servers. Samples that are missing must be reported as lost.

Prints a line for each run that is not as it should be, and a table; writes results/chaos.json. The exit code is 1 if a
job hangs, applies a sample twice, loses samples without a report, misses its accuracy, or is lost by a fault that a
job outlives.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from chaos_goodput import compare
from crashes import THREADS, places
from harness import parse, save, table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "failures"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "cluster"))

import hosts as emulated
from counting import Case
from faults import ENDING, FAULTS, Target, applicable, kinds_of
from outcomes import OUTCOMES, Found
from ranks_on_hosts import SLOTS, of_launchers
from running_job import RunningJob

from mpidl.launch.command import ROOT_PERMISSIONS
from mpidl.launch.fault_points import POINTS, VARIABLE
from mpidl.topology.roles import Roles, assign
from mpidl.topology.takeover import Fixed, successors

ROOT = Path(__file__).parent.parent
#: The environment of each MPI library, beside the sources.
ENVIRONMENTS = {"openmpi": ".venv", "mpich": ".venv-mpich", "impi": ".venv-impi"}
#: Options of each library's mpiexec by which a job may outlive its processes.
TOLERANT = {
    "openmpi": ["--enable-recovery", "--oversubscribe", "--bind-to", "none"],
    "mpich": ["-disable-auto-cleanup"],
    "impi": ["-disable-auto-cleanup"],
}
DIGITS = ROOT / "jobs" / "digits.toml"
#: Seconds of a gradient of the digits, so that faults hit the training.
GRADIENT = 0.02
#: Points that a process passes once; and a point that each role passes often.
ONCE = ("job-built", "training-begins", "trained", "summary-written", "exit-ordered")
OFTEN = {"coordinator": "looked", "server": "chunk-begun", "worker": "data-written"}
#: Of as many runs, one trains on the digits.
OF = 5


def main() -> None:
    """Strike all jobs, print the table and save it."""
    parser = argparse.ArgumentParser(description="Jobs that are struck by faults at random moments.")
    parser.add_argument("--runs", type=int, default=100, help="with each MPI library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mpi", nargs="*", choices=list(ENVIRONMENTS), help="default: that of this Python")
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), help="default: all that apply")
    parser.add_argument("--points", nargs="*", choices=list(POINTS), help="die at points; default: at all")
    parser.add_argument("--count", type=int, default=3, help="the passage of a point that is passed often")
    parser.add_argument("--ranks", type=int, default=5)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("--mpirun", action="store_true", help="start jobs by mpiexec, which can't start them again")
    parser.add_argument("--hosts", type=int, default=1, help="number of emulated hosts")
    parser.add_argument("--epochs", type=int, default=16, help="of the jobs that count, of 0.5 s each")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a job hangs")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="a key of the jobs")
    parser.add_argument("--keep", type=Path, help="a directory for the files of runs that are not as they should be")
    parser.add_argument("--json", action="store_true", help="print the runs as one JSON array, too")
    parser.add_argument("--goodput", type=float, metavar="SECONDS", help="length of one run that is struck repeatedly")
    parser.add_argument("--every", type=float, default=29.0, help="seconds between two faults of that run")
    options = parse(parser, runs=1, faults=["server"], ranks=4, servers=1, epochs=2)

    nodes = [rank // SLOTS if options.hosts > 1 else 0 for rank in range(options.ranks)]
    roles = assign(nodes, options.servers)
    if options.goodput is not None:
        compare(options, kinds_of(roles))
        return
    rows = []
    with ExitStack() as stack:
        place = stack.enter_context(places())
        hosts = stack.enter_context(emulated.Hosts(place(), options.hosts)) if options.hosts > 1 else None
        for mpi in options.mpi or [""]:
            for number, (fault, die) in enumerate(planned(options, roles)):
                rows.append(Run(options, mpi, number, fault, die, kinds_of(roles), place(), hosts).row())
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(table(summed(rows)))
    print(save("chaos", rows))
    if options.json:
        print(json.dumps(rows))
    sys.exit(not all(row["good"] for row in rows))


def planned(options: argparse.Namespace, roles: Roles) -> Iterator[tuple[str, str]]:
    """Yield the fault of each run and, where it is a death at a point, the value of ``MPIDL_DIE``."""
    kinds = kinds_of(roles)
    if options.points is None:
        faults = options.faults or list(applicable(kinds, options.hosts > 1))
        yield from ((faults[number % len(faults)], "") for number in range(options.runs))
        return
    for name in options.points or POINTS:
        passing = POINTS[name].partition(":")[0]
        for role in [passing] if passing in kinds else dict.fromkeys(kinds):
            rank, die = kinds.index(role), f"{name}:{1 if name in ONCE else options.count}"
            if passing == "successor":
                processes = range(len(kinds))
                found = successors([rank], roles, processes, set(processes) - {rank}, Fixed())
                yield f"{name}, {role}", f"{rank}:{OFTEN[role]}:3,{found[rank]}:{name}:1"
            else:
                yield f"{name}, {role}", f"{rank}:{die}"


@dataclass
class Run:
    """One job, and what happens to it.

    Attributes
    ----------
    options : argparse.Namespace
    mpi : str
        Name of an MPI library; "" is that of this Python.
    number : int
        With the seed, it decides all that is random.
    fault, die : str
        The fault, and where a rank dies if that is at a point.
    roles : list of str
        The kind of role of each rank.
    directory : Path
        An empty one.
    hosts : Hosts or None
    """

    options: argparse.Namespace
    mpi: str
    number: int
    fault: str
    die: str
    roles: Sequence[str]
    directory: Path
    hosts: emulated.Hosts | None

    def row(self) -> dict[str, Any]:
        """Run the job, let it happen, and return what became of it."""
        options, chance = self.options, random.Random(f"{self.options.seed} {self.mpi} {self.number}")
        case = Case("chaos", epochs=options.epochs, replicas=(self.roles.count("worker"),), groups=bool(self.die))
        counts = bool(self.die) or self.number % OF != OF - 1
        config = case.write(self.directory) if counts else DIGITS
        run = self.directory / "runs" / config.stem
        with RunningJob(self._words(config), self.directory, self._environment(case), **self._place()) as job:
            target = Target(job, chance, self.roles, run / "checkpoints", self.hosts)
            if not self.die and job.wait_for((run / "checkpoints" / "0").exists, options.limit):
                time.sleep(chance.uniform(0.2, 0.15 * options.epochs))
                FAULTS[self.fault](target)
            code = job.wait(options.limit)
            said = job.last_words()
        if self.hosts and self.fault == "host" and target.deeds:
            self.hosts.start(self.hosts.names[-1])
        found = Found(run, target, code, said, case if counts else None)
        figures = {"mpi": self.mpi, "run": self.number, "fault": self.fault, **found.row(ends=self.fault in ENDING)}
        if self.die and figures["outcome"] == "survived" and figures["failures"] == 0:
            figures |= {"outcome": "not reached", "good": False}
        if options.keep and not figures["good"]:
            kept = "-".join([self.mpi or "mpi", self.fault, *map(str, (options.seed, self.number))])
            shutil.copytree(self.directory, options.keep / kept, dirs_exist_ok=True)
        return figures

    def _words(self, config: Path) -> list[Any]:
        options = self.options
        words: list[Any] = ["train", config, f"--set=topology.servers={options.servers}"]
        words += ["--set=checkpoint.every=0.5", *(f"--set={each}" for each in options.sets)]
        words += [f"--set=debug.gradient_seconds={GRADIENT}"] if config == DIGITS else []
        return words if options.mpirun else [*words, "-n", options.ranks, f"--retries={options.retries}"]

    def _environment(self, case: Case) -> dict[str, str]:
        of_job = THREADS | case.environment(self.directory, case.replicas[0])
        of_job |= {VARIABLE: self.die} if self.die else {}
        of_job |= dict.fromkeys(ROOT_PERMISSIONS, "1")
        return os.environ | of_job | (of_launchers(self.hosts) if self.hosts else {})

    def _place(self) -> dict[str, Any]:
        python = str(ROOT / ENVIRONMENTS[self.mpi] / "bin" / "python") if self.mpi else sys.executable
        return {"python": python, "host": self._started}

    def _started(self, words: list[str]) -> list[str]:
        """Return the words that start the job from its own directory, on the head of its hosts, if there are any."""
        if self.options.mpirun:
            mpiexec = Path(words[0]).parent / "mpiexec"
            words = [str(mpiexec), *TOLERANT[self.mpi or "openmpi"], "-n", str(self.options.ranks), *words]
        return words if self.hosts is None else self.hosts.words(["env", f"--chdir={self.directory}", *words])


def summed(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each library and fault."""
    found = []
    for mpi, fault in dict.fromkeys((row["mpi"], row["fault"]) for row in rows):
        own = [row for row in rows if (row["mpi"], row["fault"]) == (mpi, fault)]
        found.append(
            {
                **({"MPI": mpi} if mpi else {}), "fault": fault, "runs": len(own),
                **{outcome: sum(row["outcome"] == outcome for row in own) for outcome in OUTCOMES},
                "notice (s)": middle(own, "notice"), "update (s)": middle(own, "update"),
                "90 % (s)": highest(own, "update"),
                **{name: sum(row[name] for row in own) for name in ("missing", "unreported", "doubled")},
                "bad": sum(not row["good"] for row in own),
            }
        )  # fmt: skip
    return found


def middle(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the median of a figure; None if no row has it."""
    values = [row[name] for row in rows if row[name] is not None]
    return median(values) if values else None


def highest(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the figure that 90 % of the rows don't exceed; None if no row has it."""
    values = [row[name] for row in rows if row[name] is not None]
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else middle(rows, name)


if __name__ == "__main__":
    main()
