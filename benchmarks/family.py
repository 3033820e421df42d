"""Every algorithm on Fashion-MNIST, on real ranks, with default settings.

    pip install -r benchmarks/requirements.txt
    python benchmarks/family.py

Trains 784-1024-1024-10 on 5 ranks for 10 epochs with each algorithm; two of the ranks are servers if it needs servers.
Prints a table of test accuracy, samples/s, mean staleness and MB pushed, and writes it to results/family.json, the
accuracy over time to results/family.png. Takes about a minute per algorithm.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from harness import parse, require, save, table
from mpidl.algorithms import ALGORITHMS
from training import add_data, curve, fashion, plot, train

RANKS = 5
#: Further cases: variants of algorithms.
VARIANTS: dict[str, dict[str, Any]] = {
    "easgd, synchronous": {"name": "easgd", "asynchronous": False},
    "diloco, asynchronous": {"name": "diloco", "asynchronous": True},
}


def main() -> None:
    """Run all, print the table, save it and draw the plot."""
    # Stacking makes another network, of its own.
    names = sorted({cls.name for cls in ALGORITHMS.values()} - {"stacking"})
    cases: dict[str, dict[str, Any]] = {name: {"name": name} for name in names} | VARIANTS
    parser = argparse.ArgumentParser(description="Every algorithm on Fashion-MNIST, with default settings.")
    add_data(parser)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--only", nargs="*", choices=list(cases), help="some of the cases")
    options = parse(parser, epochs=1, only=["easgd, synchronous"])
    require("matplotlib")

    runs = {}
    for case in options.only or cases:
        job = fashion(options.data, run={"epochs": options.epochs}, algorithm=cases[case], topology={"servers": 2})
        runs[case] = train(job, RANKS)
        print(f"{case}: test accuracy {runs[case]['test_accuracy']:.4f}", file=sys.stderr, flush=True)
    rows = [row(case, run) for case, run in runs.items()]
    print(table(rows))
    print(save("family", rows))
    curves = {case: curve(run) for case, run in runs.items()}
    print(plot("family", "Fashion-MNIST, 5 ranks, default settings", curves, "seconds of training", "test accuracy"))


def row(case: str, run: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the table."""
    return {
        "algorithm": case,
        "servers": run["servers"],
        "replicas": run["replicas"],
        "accuracy": round(run["test_accuracy"], 4),
        "samples/s": run["samples_per_second"],
        "seconds": run["seconds"],
        "staleness": run["staleness"]["mean"],
        "MB pushed": run["bytes_pushed"] / 1e6,
    }


if __name__ == "__main__":
    main()
