"""Whole jobs, started as users start them, are struck by a fault at a random moment: what becomes of them.

    python benchmarks/chaos.py [--runs 100] [--seed 0] [--mpi openmpi mpich impi] [--faults NAME ...] [--ranks 5]
                               [--retries 0] [--hosts 2] [--set SECTION.KEY=VALUE ...] [--json]

Most jobs count: parameter i is how often sample i was applied, so that the last checkpoint shows what was lost or
applied twice; they also record when each gradient begins. The others train a network on the digits, for its accuracy.
With --hosts, ranks are on emulated hosts (as root), and daemons, hosts and links may go, too.

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
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import h5py
import numpy as np

from crashes import THREADS, places
from harness import parse, save, table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "failures"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "cluster"))

import hosts as emulated
from counting import BATCH, BEGUN, GRADIENTS, PORTION, Case, read_verified
from faults import ENDING, FAULTS, Target, applicable, role_kinds
from ranks_on_hosts import SLOTS, of_launchers
from running_job import RunningJob

from mpidl.data.schedule import Portions
from mpidl.shards.shard import CHUNK_BYTES

ROOT = Path(__file__).parent.parent
#: The environment of each MPI library, beside the sources.
ENVIRONMENTS = {"openmpi": ".venv", "mpich": ".venv-mpich", "impi": ".venv-impi"}
DIGITS = ROOT / "jobs" / "digits.toml"
#: The least test accuracy of the digits; each gradient takes so long, in seconds, that faults hit the training.
ACCURACY, GRADIENT = 0.9, 0.02
#: Of as many runs, one trains on the digits.
OF = 5
#: Outcomes, from the best.
OUTCOMES = ("survived", "taken over", "restarted", "lost", "hung")


def main() -> None:
    """Strike all jobs, print the table and save it."""
    parser = argparse.ArgumentParser(description="Jobs that are struck by faults at random moments.")
    parser.add_argument("--runs", type=int, default=100, help="with each MPI library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mpi", nargs="*", choices=list(ENVIRONMENTS), help="default: that of this Python")
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), help="default: all that apply")
    parser.add_argument("--ranks", type=int, default=5)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--retries", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=1, help="number of emulated hosts")
    parser.add_argument("--epochs", type=int, default=16, help="of the jobs that count, of 0.5 s each")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a job hangs")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="a key of the jobs")
    parser.add_argument("--json", action="store_true", help="print the runs as one JSON array, too")
    options = parse(parser, runs=1, faults=["stop2"], ranks=4, servers=1, epochs=2)

    rows = []
    with ExitStack() as stack:
        place = stack.enter_context(places())
        found = stack.enter_context(emulated.Hosts(place(), options.hosts)) if options.hosts > 1 else None
        for mpi in options.mpi or [None]:
            for number in range(options.runs):
                rows.append(Run(options, mpi, number, place(), found).row())
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(table(summed(rows)))
    print(save("chaos", rows))
    if options.json:
        print(json.dumps(rows))
    sys.exit(not all(row["good"] for row in rows))


@dataclass
class Run:
    """One job and one fault, both chosen by the seed and the run's number.

    Attributes
    ----------
    options : argparse.Namespace
    mpi : str or None
        Name of an MPI library; None is that of this Python.
    number : int
    directory : Path
        An empty one.
    hosts : Hosts or None
    """

    options: argparse.Namespace
    mpi: str | None
    number: int
    directory: Path
    hosts: emulated.Hosts | None

    def row(self) -> dict[str, Any]:
        """Run the job, strike it, and return what became of it."""
        options, chance = self.options, random.Random(f"{self.options.seed} {self.mpi} {self.number}")
        nodes = [rank // SLOTS if self.hosts else 0 for rank in range(options.ranks)]
        roles = role_kinds(nodes, options.servers)
        faults = options.faults or list(applicable(roles, self.hosts is not None))
        fault = faults[self.number % len(faults)]
        case = Case("chaos", epochs=options.epochs, replicas=(roles.count("worker"),))
        counts = self.number % OF != OF - 1
        config = case.write(self.directory) if counts else DIGITS
        run = self.directory / "runs" / config.stem
        with RunningJob(self._words(config), self.directory, self._environment(case), **self._place()) as job:
            target = Target(job, chance, roles, run / "checkpoints", self.hosts)
            if job.wait_for(lambda: (run / "checkpoints" / "0").exists(), options.limit):
                job.wait_for(lambda: False, chance.uniform(0.2, 0.15 * options.epochs))
                FAULTS[fault](target)
            code = job.wait(options.limit)
            said = job.last_words()
        if self.hosts and fault == "host":
            self.hosts.start(self.hosts.names[-1])
        found = Found(run, target, code, said, case if counts else None)
        return {"mpi": self.mpi or "", "run": self.number, "fault": fault, **found.row(ends=fault in ENDING)}

    def _words(self, config: Path) -> list[Any]:
        options = self.options
        words: list[Any] = ["train", config, "-n", options.ranks, f"--set=topology.servers={options.servers}"]
        words += ["--set=checkpoint.every=0.5", *(f"--set={each}" for each in options.sets)]
        words += [f"--set=debug.gradient_seconds={GRADIENT}"] if config == DIGITS else []
        return [*words, f"--retries={options.retries}"] if options.retries else words

    def _environment(self, case: Case) -> dict[str, str]:
        of_job = THREADS | case.environment(self.directory, case.replicas[0])
        return os.environ | of_job | (of_launchers(self.hosts) if self.hosts else {})

    def _place(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.mpi:
            found["python"] = str(ROOT / ENVIRONMENTS[self.mpi] / "bin" / "python")
        if self.hosts:
            found["host"] = self.hosts.words
        return found


@dataclass
class Found:
    """What became of a run.

    Attributes
    ----------
    run : Path
    target : Target
    code : int or None
        The exit code; None if the job hung.
    said : str
        Its last line.
    case : Case or None
        That of a job that counts.
    """

    run: Path
    target: Target
    code: int | None
    said: str
    case: Case | None

    def row(self, ends: bool) -> dict[str, Any]:
        """Return the figures; `ends` says whether the fault may end a job."""
        outcome, missing, doubled, unreported, accuracy = self._outcome(), 0, 0, 0, None
        done = self.code == 0
        if done and self.case is not None:
            missing, doubled, unreported = self._counted(self.case)
        elif done:
            accuracy = float(json.loads((self.run / "summary.json").read_text())["test_accuracy"])
        wrong = doubled or unreported or (accuracy is not None and accuracy < ACCURACY)
        failed = outcome == "hung" or (outcome == "lost" and not (ends and self.said.startswith("mpidl: ")))
        return {
            "deeds": self.target.deeds, "outcome": outcome, "notice": self._notice(), "update": self._update(),
            "missing": missing, "unreported": unreported, "doubled": doubled, "accuracy": accuracy,
            "code": self.code, "said": self.said if self.code else "", "good": not (wrong or failed),
        }  # fmt: skip

    def _events(self, *kinds: str) -> list[dict[str, Any]]:
        path = self.run / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, filter(None, lines)) if event["event"] in kinds]

    def _outcome(self) -> str:
        if self.code != 0:
            return "hung" if self.code is None else "lost"
        if self._events("restart"):
            return "restarted"
        return "taken over" if self._events("recovery") else "survived"

    def _notice(self) -> float | None:
        """Return the seconds from the first fault to the event of a failure; None without one."""
        struck = min(self.target.struck, default=0.0)
        times = [event["time"] for event in self._events("failure") if event["time"] >= struck]
        return min(times) - struck if times else None

    def _update(self) -> float | None:
        """Return the seconds from the last fault to the begin of a rank's second gradient after it."""
        path = self.run.parent.parent / GRADIENTS
        if not self.target.struck or not path.exists():
            return None
        begun, struck = np.fromfile(path, BEGUN), max(self.target.struck)
        after = [
            np.sort(begun["time"][(begun["rank"] == rank) & (begun["time"] > struck)]) for rank in {*begun["rank"]}
        ]
        return min((float(times[1]) - struck for times in after if len(times) > 1), default=None)

    def _counted(self, case: Case) -> tuple[int, int, int]:
        """Return the applications of samples that are missing, doubled, and missing without a report.

        Of each parameter there is one sample; what follows the samples' own has all.
        """
        last = max((self.run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
        counts = read_verified(last)
        expected = np.full(counts.size, float(case.epochs))
        expected[case.samples :] *= case.samples
        missing = expected - counts
        excused = self._reported(case, counts.size, last)
        total = int(missing[: case.samples].clip(0).sum())
        return total, int((-missing).clip(0).max()), int((missing - excused).clip(0).max())

    def _reported(self, case: Case, size: int, checkpoint: Path) -> np.ndarray:
        """Return what each parameter may lack according to the events, shape (size,)."""
        reported, portions = np.zeros(size), Portions(case.samples, BATCH, PORTION, seed=0, contiguous=True)
        for event in self._events("lost"):
            first, last = event["batches"]
            for number in range(first, last + 1):
                portion, batch = divmod(number, PORTION // BATCH)
                samples, own = portions.batches(portion)[batch], np.zeros(size)
                own[samples], own[case.samples :] = 1, len(samples)
                part = slice(*self._elements(event, checkpoint))
                reported[part] += own[part]
        return reported

    @staticmethod
    def _elements(event: Mapping[str, Any], checkpoint: Path) -> tuple[int, int]:
        """Return the first and the last element, exclusive, of the chunk that an event says is lost."""
        with h5py.File(checkpoint / f"shard-{event['shard']}.h5") as file:
            start, stop = int(file.attrs["start"]), int(file.attrs["stop"])
        chunk = CHUNK_BYTES // np.dtype(float).itemsize
        start += event["chunk"] * chunk
        return start, min(start + chunk, stop)


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
