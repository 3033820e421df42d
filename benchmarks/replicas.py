"""Every asynchronous algorithm with more and more replicas and default settings, against Downpour with Adagrad.

    python benchmarks/replicas.py [--replicas 2 4 8] [--only NAME ...]

Trains 784-128-10 on Fashion-MNIST for 10 epochs, on virtual clusters whose gradients take about 1 s. Prints a table of
test accuracies, and of the points by which each algorithm at most falls behind Downpour with as many replicas; writes
it to results/replicas.json.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from harness import parse, save, table
from mpidl.algorithms import ALGORITHMS
from mpidl.algorithms.algorithm import Exchange
from training import add_data, fashion, simulate

REFERENCE = "downpour"


def main() -> None:
    """Run all, print the table and save it; the exit code is 1 if an algorithm falls behind."""
    cases = asynchronous()
    parser = argparse.ArgumentParser(description="Every asynchronous algorithm with more and more replicas.")
    add_data(parser)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--only", nargs="*", choices=list(cases), help=f"some of the cases, beside {REFERENCE}")
    parser.add_argument("--margin", type=float, default=3.0, help="points of accuracy that each may fall behind")
    options = parse(parser, epochs=1, replicas=[2], only=["dcasgd"], margin=100.0)

    reference = accuracies(cases[REFERENCE], options)
    rows = [row(REFERENCE, reference, reference)]
    for name in options.only or cases:
        if name != REFERENCE:
            rows.append(row(name, accuracies(cases[name], options), reference))
            print(f"{name}: {rows[-1]}", file=sys.stderr, flush=True)
    print(table(rows))
    print(save("replicas", rows))
    sys.exit(not all(row["behind"] <= options.margin for row in rows))


def asynchronous() -> dict[str, dict[str, Any]]:
    """Return the sections of all algorithms whose replicas don't wait for each other."""
    exchanges = {name: cls().exchange for name, cls in sorted(ALGORITHMS.items()) if name == cls.name}
    alone = {name for name, exchange in exchanges.items() if exchange in (Exchange.SERVERS, Exchange.SHARED_MEMORY)}
    return {name: {"name": name} for name in sorted(alone)} | {"diloco": {"name": "diloco", "asynchronous": True}}


def accuracies(algorithm: dict[str, Any], options: argparse.Namespace) -> dict[int, float]:
    """Return the test accuracy with each number of replicas."""
    job = fashion(
        options.data, (128,), run={"epochs": options.epochs}, algorithm=algorithm,
        virtual={"compute": "jitter:1:0.1", "latency": "0.001"},
    )  # fmt: skip
    return {replicas: simulate(job, replicas)["test_accuracy"] for replicas in options.replicas}


def row(name: str, found: dict[int, float], reference: dict[int, float]) -> dict[str, Any]:
    """Return a line of the table."""
    behind = max(100 * (reference[replicas] - accuracy) for replicas, accuracy in found.items())
    return {"algorithm": name} | {f"{n} replicas": round(each, 4) for n, each in found.items()} | {"behind": behind}


if __name__ == "__main__":
    main()
