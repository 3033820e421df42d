"""Shared by the benchmarks that train whole runs: jobs on Fashion-MNIST, started as users start them."""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness import QUICK, RESULTS, pyplot, start_python
from mpidl.config import toml

#: Keys of a job, section by section.
Job = dict[str, dict[str, Any]]
Run = dict[str, Any]


#: The program of ranks that are profiled.
PROFILED = Path(__file__).parent / "peers" / "profiled_rank.py"
#: Units of hidden layers.
UNITS = (32,) if QUICK else (1024, 1024)
#: Images of the smallest form of a benchmark, in each split.
FEW = {"train": 2048, "t10k": 256}


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--data``."""
    place = few_images() if QUICK else Path("data/fashion-mnist")
    parser.add_argument("--data", type=Path, default=place, help="the four Fashion-MNIST .gz files (%(default)s)")


def few_images() -> Path:
    """Write some images of noise in the files of Fashion-MNIST; return their directory."""
    directory = RESULTS / "images"
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for split, count in FEW.items():
        for name, shape, most in (("images-idx3", (count, 28, 28), 256), ("labels-idx1", (count,), 10)):
            header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
                file.write(gzip.compress(header + random.integers(0, most, shape, np.uint8).tobytes()))
            # Benchmarks that run at the same time never see half a file.
            Path(file.name).replace(directory / f"{split}-{name}-ubyte.gz")
    return directory


def fashion(directory: Path, units: tuple[int, ...] = UNITS, **sections: dict[str, Any]) -> Job:
    """Return a job on Fashion-MNIST that trains dense layers.

    Parameters
    ----------
    directory
        The four .gz files are here.
    units
        Units of each hidden layer.
    sections
        Further keys of the job.
    """
    hidden = [{"type": "dense", "units": count, "activation": "relu"} for count in units]
    job: Job = {
        "data": {"source": "idx", "path": str(directory.resolve())},
        "model": {"layer": [*hidden, {"type": "dense", "units": 10}]},
    }
    return with_sections(job, **sections)


def with_sections(job: Job, **sections: dict[str, Any]) -> Job:
    """Return a copy of a job, in which the keys of `sections` have these values."""
    changed = copy.deepcopy(job)
    for name, keys in sections.items():
        changed.setdefault(name, {}).update(keys)
    return changed


def train(job: Job, ranks: int, keep: Path | None = None, start: list[str] | None = None) -> Run:
    """Train on ranks; return the summary, with the run's records as "records".

    Parameters
    ----------
    job
    ranks
    keep
        A directory for the run's files, which are otherwise removed.
    start
        The launcher's words; by default ``mpidl train -n`` starts the ranks.
    """
    return _run(job, "train", *(() if start else ("-n", ranks)), keep=keep, start=start or [])


def simulate(job: Job, replicas: int, keep: Path | None = None) -> Run:
    """Train on a virtual cluster; return the summary, with the run's records as "records". `keep` is as in `train`."""
    return _run(job, "simulate", "--replicas", replicas, keep=keep)


def _run(job: Job, command: str, *arguments: Any, keep: Path | None = None, start: Sequence[str] = ()) -> Run:
    with tempfile.TemporaryDirectory(dir=keep) as directory:
        path = Path(directory).resolve() / "job.toml"
        path.write_text(toml.dump(with_sections(job, run={"dir": str((keep or path.parent).resolve())})))
        summary = last_json([*start, sys.executable, "-m", "mpidl", command, path, *arguments, "--json"])
        lines = (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    return summary | {"records": [json.loads(line) for line in lines]}


def profile(job: Job, roles: Sequence[str]) -> list[dict[str, Any]]:
    """Train on ranks with these roles; return the processor time of each by phase, in ms for each gradient of the run.

    Times of less than 10 us are left out.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory).resolve() / "job.toml"
        path.write_text(toml.dump(with_sections(job, run={"dir": str(path.parent)})))
        start_python(len(roles), ["-P", str(PROFILED), directory, str(path)], check=True, capture_output=True)
        found = [json.loads(Path(directory, f"{rank}.json").read_text()) for rank in range(len(roles))]
    gradients = sum(each["gradients"] for each in found)
    rows = []
    for rank, (role, each) in enumerate(zip(roles, found, strict=True)):
        spent = {phase: 1e3 * seconds / gradients for phase, seconds in each["seconds"].items()}
        spent["all"] = sum(spent.values())
        shown = sorted((item for item in spent.items() if item[1] >= 0.01), key=lambda item: -item[1])
        rows += [{"rank": rank, "role": role, "phase": phase, "ms/gradient": time} for phase, time in shown]
    return rows


def last_json(command: list[Any]) -> Run:
    """Run a command, one thread a process, and return the JSON object on the last line of its stdout."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stderr}\n{command}: exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def curve(run: Run, over: str = "time") -> tuple[list[float], list[float]]:
    """Return seconds of training (or "epoch") and test accuracy, where the accuracy was measured."""
    # A record between two evaluations repeats the last one's accuracy.
    points: dict[float, float] = {}
    for record in run["records"]:
        accuracy = record["test_accuracy"]
        if accuracy is not None and (not points or accuracy != next(reversed(points.values()))):
            points[record[over]] = accuracy
    return list(points), list(points.values())


def plot(name: str, title: str, curves: dict[str, tuple[list[float], list[float]]], xlabel: str, ylabel: str) -> Path:
    """Draw curves, (x, y) by label, into ``results/NAME.png``; return its path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot().subplots(figsize=(9, 6), layout="constrained")
    colours = pyplot().get_cmap("tab20")
    for number, (label, (x, y)) in enumerate(curves.items()):
        style = "-" if number < 20 else "--"
        axes.plot(x, y, style, marker=".", color=colours(number % 20), label=label)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    path = RESULTS / f"{name}.png"
    figure.savefig(path, dpi=120)
    pyplot().close(figure)
    return path
