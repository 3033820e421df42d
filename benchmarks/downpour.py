"""Downpour against PyTorch: DistributedDataParallel over gloo, and a parameter server over PyTorch's RPC.

Each trains 784-1024-1024-10 on Fashion-MNIST with two workers, batches of 128, Adagrad, one thread a process:

    pip install -r benchmarks/requirements.txt
    python benchmarks/downpour.py

All run in turn, round after round. Prints a table of samples/s and of the seconds of training until the test accuracy
reached the target, and writes it to results/downpour.json with the figures of every run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness import parse, save, table
from training import add_data, curve, fashion, last_json, train

HERE = Path(__file__).resolve().parent
MPIDL = "mpidl"
WORKERS = 2

Run = dict[str, Any]


def main() -> None:
    """Run all in turn, print the table and save it."""
    options = arguments()
    cases: dict[str, Callable[[], Run]] = {
        MPIDL: partial(downpour, options),
        "PyTorch DDP": partial(peer, "ddp.py", options),
        "PyTorch RPC": partial(peer, "rpc.py", options),
    }
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
    return parse(parser, epochs=1, rounds=1)


def downpour(options: argparse.Namespace) -> Run:
    """Train with mpidl on a coordinator, a server and the workers."""
    job = fashion(options.data, run={"epochs": options.epochs}, server={"rule": "adagrad", "rate": options.rate})
    run = train(job, WORKERS + 2)
    evaluations = zip(*curve(run), strict=True)
    return {
        "samples_per_second": run["samples_per_second"],
        "seconds": run["seconds"],
        "test_accuracy": run["test_accuracy"],
        "seconds_to_target": next((time for time, accuracy in evaluations if accuracy >= options.target), None),
    }


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
    return last_json([sys.executable, HERE / "peers" / script, *words, "--json"])


def row(name: str, runs: dict[str, list[Run]], target: float) -> dict[str, Any]:
    """Return a line of the table: medians over the rounds."""
    speed = median(run["samples_per_second"] for run in runs[name])
    ours = median(run["samples_per_second"] for run in runs[MPIDL])
    times = [run["seconds_to_target"] for run in runs[name]]
    return {
        "case": name,
        "samples/s": speed,
        f"{MPIDL} is": ours / speed,
        f"s to {target:g}": None if None in times else median(times),
        "accuracy": median(run["test_accuracy"] for run in runs[name]),
    }


if __name__ == "__main__":
    main()
