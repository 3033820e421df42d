"""Accuracy and bytes of the wire formats: Downpour on Fashion-MNIST, on real ranks.

    pip install -r benchmarks/requirements.txt
    python benchmarks/compression.py

Trains 784-1024-1024-10 on 5 ranks (two servers, two workers) for 10 epochs with each pair of formats, of pushes and of
fetches. The runs are deterministic, because otherwise nothing is encoded within a node. Prints a table of test accuracy
and bytes, and writes it to results/compression.json.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from harness import parse, save, table
from training import add_data, fashion, train

RANKS = 5
#: The formats of pushes and of fetches; the others are compared with the first.
FORMATS = [
    "fp32,fp32", "bf16,fp32", "int8,fp32", "topk:0.01,fp32", "onebit,fp32", "bf16,bf16", "int8,int8", "topk:0.01,int8",
    "topk:0.01,topk:0.05", "onebit,onebit",
]  # fmt: skip


def main() -> None:
    """Run all, print the table and save it."""
    parser = argparse.ArgumentParser(description="Accuracy and bytes of the wire formats.")
    add_data(parser)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--formats", nargs="*", metavar="PUSHES,FETCHES", default=FORMATS)
    options = parse(parser, epochs=1, formats=["int8,int8"])

    runs: dict[str, dict[str, Any]] = {}
    for pair in options.formats:
        wire, wire_fetch = pair.split(",")
        job = fashion(
            options.data,
            run={"epochs": options.epochs, "deterministic": True},
            algorithm={"name": "downpour", "wire": wire, "wire_fetch": wire_fetch},
            topology={"servers": 2},
        )
        runs[pair] = train(job, RANKS)
        print(f"{pair}: test accuracy {runs[pair]['test_accuracy']:.4f}", file=sys.stderr, flush=True)
    first = options.formats[0]
    reference = runs[first]
    rows = [
        {
            "wire, wire_fetch": pair,
            "accuracy": round(run["test_accuracy"], 4),
            f"points of {first}": 100 * (run["test_accuracy"] - reference["test_accuracy"]),
            "MB pushed": run["bytes_pushed"] / 1e6,
            "MB fetched": run["bytes_fetched"] / 1e6,
            "times fewer": _bytes(reference) / _bytes(run),
        }
        for pair, run in runs.items()
    ]
    print(table(rows))
    print(save("compression", rows))


def _bytes(run: dict[str, Any]) -> int:
    return int(run["bytes_pushed"] + run["bytes_fetched"])


if __name__ == "__main__":
    main()
