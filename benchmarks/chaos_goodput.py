"""One long run is struck again and again: the samples that it trains, against those of a run that is left alone.

The processes of random ranks die, are stopped for 2 s, or are slow. The run goes on as long as a worker's process is
left; when no other process is, the keeper of that one is killed, so that the launcher ends the job, and all processes
start again. Gradients take their time by sleeping, so that ranks that share a core have a speed of their own. What dead
workers would have trained until the next start is their own share, and not expected of the run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import h5py

from crashes import THREADS, places
from harness import save, table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "failures"))

from faults import Target
from outcomes import read_events
from running_job import RunningJob

from mpidl.launch.command import ROOT_PERMISSIONS
from mpidl.launch.signals import STOPPED

DIGITS = Path(__file__).parent.parent / "jobs" / "digits.toml"
KEYS = {"run.epochs": 10**6, "checkpoint.every": 2.0, "debug.gradient_seconds": 0.05}
#: The kinds of faults, and how often each happens.
WEIGHTS = {"death": 0.5, "stop": 0.35, "slow": 0.15}


class Strike(NamedTuple):
    """A fault of a rank, and when it happened, in seconds since the epoch."""

    kind: str
    rank: int
    time: float


class Trained(NamedTuple):
    """The samples that a run has trained in some seconds, and the seconds of all workers that its dead ones lacked."""

    samples: int
    seconds: float
    dead: float
    strikes: list[Strike]
    events: list[dict[str, Any]]


def compare(options: argparse.Namespace, kinds: Sequence[str]) -> None:
    """Train both runs, on ranks of some kinds of roles; print the tables and save them."""
    with places() as place:
        alone, struck = (train(options, kinds, place(), struck) for struck in (False, True))
    rate = alone.samples / alone.seconds
    figures = {
        "faults": len(struck.strikes), "seconds": struck.seconds, "dead workers (s)": struck.dead,
        "samples/s": struck.samples / struck.seconds, "undisturbed": rate,
        "goodput": struck.samples / (rate * (struck.seconds - struck.dead)),
    }  # fmt: skip
    rows = list(recoveries(struck))
    print(table(rows))
    print(table([figures]))
    print(save("chaos_goodput", [figures, *rows]))


def train(options: argparse.Namespace, kinds: Sequence[str], directory: Path, struck: bool) -> Trained:
    """Train for some seconds, with faults or without, and stop."""
    run = directory / "runs" / DIGITS.stem
    keys = [f"{name}={value}" for name, value in (KEYS | {"topology.servers": options.servers}).items()]
    words = ["train", DIGITS, "-n", options.ranks, "--retries=99", *(f"--set={key}" for key in keys + options.sets)]
    variables = os.environ | THREADS | dict.fromkeys(ROOT_PERMISSIONS, "1")
    with RunningJob(words, directory, variables) as job:
        if not job.wait_for((run / "checkpoints" / "0").exists, options.limit):
            sys.exit(f"the run doesn't begin: {job.last_words()}")
        began = last = time.monotonic()
        target = Target(job, random.Random(options.seed), kinds, run / "checkpoints")
        strikes, dead, count = list[Strike](), 0.0, kinds.count("worker")
        for moment in moments(options.goodput, options.every if struck else options.goodput):
            time.sleep(max(0.0, began + moment - time.monotonic()))
            job.wait_for(lambda: alive(target, "worker"), options.limit)
            now = time.monotonic()
            dead, last = dead + (now - last) * (1 - len(alive(target, "worker")) / count), now
            if moment < options.goodput:
                strikes.append(strike(target))
                print(f"{moment:6.0f} s  {target.deeds[-1]}", file=sys.stderr, flush=True)
        job.launcher.send_signal(signal.SIGTERM)
        if job.wait(options.limit) != STOPPED:
            sys.exit(f"the run doesn't save and stop: {job.last_words()}")
    newest = max(int(path.name) for path in (run / "checkpoints").glob("[0-9]*"))
    with h5py.File(run / "checkpoints" / str(newest) / "index.h5") as index:
        return Trained(int(index.attrs["samples"]), last - began, dead, strikes, read_events(run))


def moments(seconds: float, every: float) -> Iterator[float]:
    """Yield the seconds at which faults happen, of which the last leaves time for what follows; then the last."""
    yield from (number * every for number in range(1, int(seconds / every)))
    yield seconds


def alive(target: Target, role: str) -> list[int]:
    """Return the ranks with a role, or all, that their own processes play."""
    ranks = [rank for rank, each in enumerate(target.roles) if each == (role or each)]
    return [rank for rank in ranks if target.job.processes(rank)]


def strike(target: Target) -> Strike:
    """Let something happen to a rank whose process lives."""
    (kind,) = target.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
    ranks, workers, now = alive(target, ""), alive(target, "worker"), time.time()
    mortal = [rank for rank in ranks if target.roles[rank] != "worker" or len(workers) > 1]
    if kind == "death" and not mortal:
        kind = "restart"
    rank = target.chance.choice(mortal if kind == "death" else ranks)
    if kind == "death":
        target.send([rank], signal.SIGKILL)
    elif kind == "restart":
        target.kill_keeper(rank)
    elif kind == "stop":
        target.stop(rank, 2.0)
    else:
        target.slow(rank)
    return Strike(kind, rank, now)


def recoveries(trained: Trained) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of fault: the seconds until the rank was played again, or the job had started again."""
    for kind in dict.fromkeys(each.kind for each in trained.strikes):
        own = [each for each in trained.strikes if each.kind == kind]
        found = [seconds for each in own if (seconds := _recovery(each, trained.events)) is not None]
        middle, most = (median(found), max(found)) if found else (None, None)
        yield {"fault": kind, "number": len(own), "recovered": len(found), "median (s)": middle, "longest (s)": most}


def _recovery(strike: Strike, events: Sequence[dict[str, Any]]) -> float | None:
    """Return the seconds until a rank that has died was played again, or the job had started again."""
    if strike.kind not in ("death", "restart"):
        return None
    for event in events:
        taken_over = event["event"] == "recovery" and "by" in event and event["rank"] == strike.rank
        if event["time"] > strike.time and (taken_over or event["event"] == "placement"):
            return float(event["time"]) - strike.time
    return None
