"""Downpour against PyTorch: DistributedDataParallel over gloo, and a parameter server over PyTorch's RPC.

Each trains 784-1024-1024-10 on Fashion-MNIST with two workers, batches of 128, Adagrad, one thread a process. mpidl
trains native layers and a PyTorch module, each beside its limit, bare loops of the same gradients in two processes:

    pip install -r benchmarks/requirements.txt
    python benchmarks/downpour.py [--profile]

All run in turn, round after round. Prints a table of samples/s, of their ratios to those of DistributedDataParallel and
of the bare loops, and of the seconds of training until the test accuracy reached the target. Writes it to
results/downpour.json with the figures of every run. With ``--profile``, prints where the processor time of each of
mpidl's ranks goes instead, by phase.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness import parse, save, table
from mpidl.config import toml
from training import Job, add_data, curve, fashion, last_json, profile, train

PEERS = Path(__file__).resolve().parent / "peers"
DDP = "PyTorch DDP"
#: mpidl's cases by their models, and the limit of each.
CASES = {"layers": "mpidl", "module": "mpidl, a module"}
LIMITS = {"mpidl": "bare loops", "mpidl, a module": "bare loops, a module"}
WORKERS = 2
ROLES = ["coordinator", "server", *["worker"] * WORKERS]

Run = dict[str, Any]


def main() -> None:
    """Run all in turn, print the table and save it."""
    options = arguments()
    # The module's function is in a file of the peers.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PEERS), os.environ.get("PYTHONPATH")]))
    if options.profile:
        for model in options.models:
            print(CASES[model], table(profile(job_of(model, options), ROLES)), sep="\n")
        return
    cases: dict[str, Callable[[], Run]] = {}
    for model in options.models:
        name, job = CASES[model], job_of(model, options)
        cases |= {name: partial(downpour, job, options.target), LIMITS[name]: partial(bare, job)}
    cases |= {DDP: partial(peer, "ddp.py", options), "PyTorch RPC": partial(peer, "rpc.py", options)}
    runs: dict[str, list[Run]] = {name: [] for name in cases}
    for number in range(options.rounds):
        for name, case in cases.items():
            run = case()
            runs[name].append(run)
            print(f"round {number + 1}, {name}: {run['samples_per_second']:.0f} samples/s", file=sys.stderr, flush=True)
    rows = [row(name, runs, options.target) for name in cases]
    print(table(rows))
    print(save("downpour", [shown | {"runs": runs[name]} for shown, name in zip(rows, cases, strict=True)]))


def arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Downpour against PyTorch, on this machine's cores.")
    add_data(parser)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--rate", type=float, default=0.005, help="Adagrad's learning rate, of all")
    parser.add_argument("--target", type=float, default=0.88, help="test accuracy whose time is measured")
    parser.add_argument("--profile", action="store_true", help="print processor time by rank and phase")
    parser.add_argument("--models", nargs="+", choices=CASES, default=[*CASES], help="models that mpidl trains")
    return parse(parser, epochs=1, rounds=1, models=["layers"])


def job_of(model: str, options: argparse.Namespace) -> Job:
    """Return the job of native layers or of a PyTorch module."""
    job = fashion(options.data, run={"epochs": options.epochs}, server={"rule": "adagrad", "rate": options.rate})
    return job if model == "layers" else job | {"model": {"factory": "common:network", "loss": "cross_entropy"}}


def downpour(job: Job, target: float) -> Run:
    """Train with mpidl on a coordinator, a server and the workers."""
    run = train(job, WORKERS + 2)
    evaluations = zip(*curve(run), strict=True)
    return {
        "samples_per_second": run["samples_per_second"],
        "seconds": run["seconds"],
        "test_accuracy": run["test_accuracy"],
        "seconds_to_target": next((time for time, accuracy in evaluations if accuracy >= target), None),
    }


def bare(job: Job) -> Run:
    """Compute an epoch's gradients in bare loops."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(toml.dump(job))
        file.flush()
        return last_json([sys.executable, PEERS / "bare.py", file.name, "--workers", WORKERS])


def peer(script: str, options: argparse.Namespace) -> Run:
    """Train with PyTorch."""
    settings = {
        "--data": options.data,
        "--workers": WORKERS,
        "--epochs": options.epochs,
        "--rate": options.rate,
        "--target": options.target,
    }
    words = [word for setting in settings.items() for word in setting]
    return last_json([sys.executable, PEERS / script, *words, "--json"])


def row(name: str, runs: dict[str, list[Run]], target: float) -> dict[str, Any]:
    """Return a line of the table: medians over the rounds."""
    speeds = {each: median(run["samples_per_second"] for run in runs[each]) for each in runs}
    times = [run.get("seconds_to_target") for run in runs[name]]
    accuracies = [run["test_accuracy"] for run in runs[name] if "test_accuracy" in run]
    return {
        "case": name,
        "samples/s": speeds[name],
        "of DDP": speeds[name] / speeds[DDP],
        "of its limit": speeds[name] / speeds[LIMITS[name]] if name in LIMITS else None,
        f"s to {target:g}": None if None in times else median(times),
        "accuracy": median(accuracies) if accuracies else None,
    }


if __name__ == "__main__":
    main()
