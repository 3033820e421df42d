"""Every algorithm with more and more replicas, one of them slow, and default settings, against Downpour with Adagrad.

    python benchmarks/replicas.py [--replicas 4 8 16] [--slow 5] [--only NAME ...]

Trains 784-128-10 on Fashion-MNIST for 3 epochs, on virtual clusters whose gradients take about 1 s, and 5 s on one
replica. Prints a table of test accuracies, that of docs/algorithms.rst, and of the points by which each algorithm at
most falls behind Downpour with as many replicas; writes it to results/replicas.json.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from harness import parse, save, table
from mpidl.algorithms import ALGORITHMS
from training import add_data, fashion, simulate

REFERENCE = "downpour"
#: An epoch is one evaluation of an objective, or a few rounds: they can't be compared with thousands of steps.
FEW_STEPS = ("sandblaster", "ringleader")
#: Further cases, for which the default settings are too slow in so few steps.
VARIANTS: dict[str, dict[str, Any]] = {
    "diloco, asynchronous, window = 4": {"name": "diloco", "asynchronous": True, "window": 4},
    "sandblaster, batch = 0.05": {"name": "sandblaster", "batch": 0.05},
}


def main() -> None:
    """Run all, print the table and save it; the exit code is 1 if an algorithm falls behind."""
    # Stacking makes another network, of its own.
    names = sorted({cls.name for cls in ALGORITHMS.values()} - {"stacking"})
    cases: dict[str, dict[str, Any]] = dict(sorted(({name: {"name": name} for name in names} | VARIANTS).items()))
    parser = argparse.ArgumentParser(description="Every algorithm with more and more replicas, one of them slow.")
    add_data(parser)
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--slow", type=float, default=5.0, help="factor of the time of the first replica's gradients")
    parser.add_argument("--only", nargs="*", choices=list(cases), help=f"some of the cases, beside {REFERENCE}")
    parser.add_argument("--margin", type=float, default=3.0, help="points of accuracy that each may fall behind")
    options = parse(parser, epochs=1, replicas=[2], only=["dcasgd"], margin=100.0)

    reference = accuracies(cases[REFERENCE], options)
    rows = []
    for name in options.only or cases:
        rows.append(row(name, reference if name == REFERENCE else accuracies(cases[name], options), reference))
        print(f"{name}: {rows[-1]}", file=sys.stderr, flush=True)
    print(table(rows))
    print(save("replicas", rows))
    sys.exit(not all(row["behind"] <= options.margin for row in rows if row["algorithm"] not in FEW_STEPS))


def accuracies(algorithm: dict[str, Any], options: argparse.Namespace) -> dict[int, float]:
    """Return the test accuracy with each number of replicas."""
    slow = [{"replica": 0, "factor": options.slow}]
    job = fashion(
        options.data, (128,), run={"epochs": options.epochs}, algorithm=algorithm,
        virtual={"compute": "jitter:1:0.1", "latency": "0.001", "slow": slow},
    )  # fmt: skip
    return {replicas: simulate(job, replicas)["test_accuracy"] for replicas in options.replicas}


def row(name: str, found: dict[int, float], reference: dict[int, float]) -> dict[str, Any]:
    """Return a line of the table."""
    behind = max(100 * (reference[replicas] - accuracy) for replicas, accuracy in found.items())
    return {"algorithm": name} | {f"{n} replicas": round(each, 4) for n, each in found.items()} | {"behind": behind}


if __name__ == "__main__":
    main()
