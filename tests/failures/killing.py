"""Starts jobs, kills them or sends them signals at a random moment, and resumes them until they end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from counting import GRADIENTS, NAME, Case, Found, examine
from running_job import RunningJob

#: Starts of a case that may go wrong before no more are made.
PATIENCE = 5
#: Signals that ask a run to save and stop.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@dataclass
class Report:
    """What was done to the runs of a case, and what became of them.

    Attributes
    ----------
    runs, kills, signals, resumes, checkpoints : int
        `checkpoints` were looked at.
    lost, doubled : int
        Applications of samples at the ends of runs.
    left : int
        Files in shared memory and among the temporary ones that killed jobs left, and the starts after them too.
    wrong : list of str
        Checkpoints with a fault.
    failed : list of str
        Starts that went wrong: another exit code than they should, a hang.
    """

    runs: int = 0
    kills: int = 0
    signals: int = 0
    resumes: int = 0
    checkpoints: int = 0
    lost: int = 0
    doubled: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.lost or self.doubled or self.left or self.wrong or self.failed)


class Run:
    """One run of a case, started and struck again and again until it ends.

    Parameters
    ----------
    case : Case
    directory : Path
        An empty one.
    environment : dict
        Of the jobs.
    chance : random.Random
        Decides all that is random.
    report : Report
        Added to.

    Attributes
    ----------
    shared : set of Path
        What jobs mapped when they were killed.
    """

    def __init__(
        self, case: Case, directory: Path, environment: dict[str, str], chance: random.Random, report: Report
    ) -> None:
        self.case, self.directory, self.chance, self.report = case, directory, chance, report
        self._environment = environment
        self._config = case.write(directory)
        self._run = directory / "runs" / NAME
        self._looked: set[tuple[str, int]] = set()
        self.shared: set[Path] = set()
        self._said = ""
        report.runs += 1

    def finish(self, strikes: list[Callable[[Run, RunningJob], set[int]]]) -> None:
        """Strike the run once for each of `strikes`, resume it each time, and see it through to its end."""
        remaining: Iterator = iter(strikes)
        while True:
            strike = next(remaining, None)
            with self._start() as job:
                allowed = {0} if strike is None else strike(self, job)
                code = job.wait()
            self._look()
            if code not in allowed:
                fate = "hangs, or leaves processes" if code is None else f"exit code {code}"
                self.report.failed.append(f"{self._said}: {fate}: {job.last_words()}")
            if code == 0:
                self._end()
            if code == 0 or code == 2 or strike is None:
                self._clear()
                return

    def said(self, text: str) -> None:
        """Note what is being done, for what is reported of it."""
        self._said = f"{self._said}, {text}"

    def _start(self) -> RunningJob:
        case, chance = self.case, self.chance
        servers, replicas = chance.choice(case.servers), chance.choice(case.replicas)
        ranks = 1 + servers + replicas + case.relays
        self._said = f"{ranks} ranks, {servers} servers"
        (self.directory / GRADIENTS).unlink(missing_ok=True)
        words = ["train", self._config, "-n", ranks, f"--set=checkpoint.every={chance.uniform(0.2, 0.5):.3f}"]
        if servers:
            words.append(f"--set=topology.servers={servers}")
        if self._run.exists():
            words.append(f"--resume={self._run.relative_to(self.directory)}")
            self.report.resumes += 1
            self.said("resumed")
        environment = self._environment | case.environment(self.directory, replicas)
        return RunningJob(words, self.directory, environment)

    def _look(self) -> None:
        """Examine the checkpoints that have appeared since the last look."""
        for path in self._checkpoints():
            index = path / "index.h5"
            key = path.name, index.stat().st_mtime_ns if index.exists() else 0
            if key not in self._looked:
                self._looked.add(key)
                self._examine(path)

    def _examine(self, path: Path, whole: bool = False) -> Found:
        self.report.checkpoints += not whole
        found = examine(path, self.case, whole)
        if found.fault:
            at = "end" if whole else f"checkpoint {found.step}"
            self.report.wrong.append(f"{self._said}: {at}: {found.fault}")
        return found

    def _end(self) -> None:
        found = self._examine(self._checkpoints()[-1], whole=True)
        self.report.lost += found.lost
        self.report.doubled += found.doubled

    def _clear(self) -> None:
        """Count what killed jobs left, if there was a start after them."""
        self.report.left += sum(path.exists() for path in self.shared)

    def _checkpoints(self) -> list[Path]:
        found = (self._run / "checkpoints").glob("[0-9]*")
        return sorted(found, key=lambda path: int(path.name))

    # Moments.

    def wait_for_phase(self, job: RunningJob, phase: str) -> None:
        """Wait for a random moment of a phase: "start", "training", "writing" or "end"."""
        self.said(phase)
        checkpoints = self._run / "checkpoints"
        if phase == "start":
            pause = self.chance.uniform(0, 2.0)
        elif phase == "training":
            job.wait_for((self.directory / GRADIENTS).exists)
            pause = self.chance.uniform(0, 2.0)
        elif phase == "writing":
            job.wait_for((self.directory / GRADIENTS).exists)
            time.sleep(self.chance.uniform(0, 0.5))
            job.wait_for(lambda: any(checkpoints.glob(".*")))
            pause = self.chance.uniform(0, 0.02 + 1e-8 * self.case.padding)
        else:
            job.wait_for(lambda: any(int(path.name) >= self.case.steps for path in checkpoints.glob("[0-9]*")))
            pause = self.chance.uniform(0, 0.3)
        time.sleep(pause)


def kill(run: Run, job: RunningJob) -> set[int]:
    """Kill the whole job at a random moment; return the exit codes that may follow."""
    phase = run.chance.choice(["start", "training", "training", "writing"])
    run.wait_for_phase(job, phase)
    if job.launcher.poll() is not None:
        return {0}
    run.shared |= job.shared_files()
    job.kill(run.chance)
    run.report.kills += 1
    run.said("killed")
    return {-signal.SIGKILL, 0}


def signal_twice(run: Run, job: RunningJob) -> set[int]:
    """Send a random signal to a random rank or to the launcher, and then again; return the exit codes that may follow.

    A second SIGINT asks to end at once, so that one is sent once.
    """
    chance = run.chance
    number, phase = chance.choice(STOPPING), chance.choice(["start", "training", "training", "writing", "end"])
    run.wait_for_phase(job, phase)
    if job.launcher.poll() is not None:
        return {0}
    ranks = [process for rank in range(6) for process in job.processes(rank)]
    if ranks and chance.random() < 0.6:
        target, name = chance.choice(ranks), "a rank"
    else:
        target, name = job.launcher.pid, "the launcher"
    # From the beginning, Python catches SIGINT, and no others.
    job.wait_for(lambda: _minds(target, signal.SIGTERM if number == signal.SIGINT else number), 5.0)
    run.said(f"{number.name} to {name}")
    for pause in (0.0, chance.uniform(0, 1.0)) if number != signal.SIGINT else (0.0,):
        time.sleep(pause)
        if job.launcher.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, number)
    run.report.signals += 1
    return {0, 75}


def _minds(process: int, number: signal.Signals) -> bool:
    """Tell whether a process catches, blocks or ignores a signal: until its program begins, none can."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            name, _, mask = line.partition(":")
            if name in ("SigCgt", "SigBlk", "SigIgn") and int(mask, 16) >> (number - 1) & 1:
                return True
    return False


def strike_runs(
    case: Case,
    place: Callable[[], Path],
    environment: dict[str, str],
    chance: random.Random,
    kills: int = 0,
    signals: int = 0,
    each: int = 5,
) -> Report:
    """Strike runs of a case until there were enough kills and signals; return the report.

    Parameters
    ----------
    case : Case
    place : callable
        Returns an empty directory.
    environment : dict
    chance : random.Random
    kills, signals : int
    each : int
        Largest number of strikes for one run.
    """
    report = Report()
    while len(report.failed) < PATIENCE and (report.kills < kills or report.signals < signals):
        strikes = [kill] * (kills - report.kills) + [signal_twice] * (signals - report.signals)
        chance.shuffle(strikes)
        Run(case, place(), environment, chance, report).finish(strikes[:each])
    return report
