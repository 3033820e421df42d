"""A rate divided by staleness trains where a fixed rate diverges: n-softsync with 30 learners on a virtual cluster.

    pip install -r benchmarks/requirements.txt
    python benchmarks/staleness.py

Reproduces the contrast that Zhang, Gupta, Lian, Liu (2016), Staleness-aware async-SGD, show for CIFAR-10, with
784-128-10 on Fashion-MNIST: lambda = 30 learners whose gradients take about 1 s; n = 1, 15 and 30; plain SGD at a rate
that is too high for large staleness. Prints a table of test accuracy and measured staleness beside
(lambda - 1) / c, and writes it to results/staleness.json, the accuracy over epochs to results/staleness.png.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from harness import parse, require, save, table
from training import add_data, curve, fashion, plot, simulate

LEARNERS = 30
CHANCE = 0.1


def main() -> None:
    """Run all, print the table, save it and draw the plot."""
    parser = argparse.ArgumentParser(description="Fixed and staleness-dependent rates of n-softsync.")
    add_data(parser)
    parser.add_argument("--rate", type=float, default=0.1, help="alpha_0, of plain SGD")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--n", type=int, nargs="*", default=[1, 15, 30])
    options = parse(parser, epochs=1, n=[15])
    require("matplotlib")

    rows, curves = [], {}
    for n in options.n:
        for modulate in (False, True):
            run = softsync(options, n, modulate)
            rate = "alpha_0 / staleness" if modulate else "fixed"
            rows.append(row(n, rate, run))
            curves[f"n = {n}, {rate}"] = curve(run, "epoch")
            print(f"n = {n}, {rate}: test accuracy {run['test_accuracy']:.4f}", file=sys.stderr, flush=True)
    print(table(rows))
    print(save("staleness", rows))
    title = f"n-softsync, lambda = {LEARNERS}, alpha_0 = {options.rate:g}"
    print(plot("staleness", title, curves, "epochs", "test accuracy"))


def softsync(options: argparse.Namespace, n: int, modulate: bool) -> dict[str, Any]:
    """Train on the virtual cluster."""
    job = fashion(
        options.data,
        (128,),
        run={"epochs": options.epochs},
        data={"batch": 32, "portion": 32},
        algorithm={"name": "softsync", "n": n, "modulate": modulate},
        server={"rule": "sgd", "rate": options.rate},
        virtual={"compute": "jitter:1:0.1", "latency": "0.001"},
    )
    return simulate(job, LEARNERS)


def row(n: int, rate: str, run: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the table."""
    return {
        "n": n,
        "rate": rate,
        "accuracy": run["test_accuracy"],
        "trains": "yes" if run["test_accuracy"] > 5 * CHANCE else "diverges",
        "train loss": run["train_loss"],
        "staleness": run["staleness"]["mean"],
        "(lambda - 1) / c": (LEARNERS - 1) / (LEARNERS // n),
        "max": run["staleness"]["max"],
    }


if __name__ == "__main__":
    main()
