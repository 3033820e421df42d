"""What wire formats cost in accuracy and save in bytes: Downpour on Fashion-MNIST, on real ranks.

    pip install -r benchmarks/requirements.txt
    python benchmarks/compression.py --data DIRECTORY

Trains 784-1024-1024-10 on 5 ranks (two servers, two workers) for 10 epochs with each format in turn, all else at its
default. Prints a table of test accuracy, bytes and samples/s, and writes it to results/compression.json. Between two
runs of one format the accuracy differs by about 0.2 points.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from harness import save, table
from training import fashion, train

RANKS = 5
FORMATS = ("fp32", "bf16", "topk:0.01", "onebit")


def main() -> None:
    """Run all, print the table and save it."""
    parser = argparse.ArgumentParser(description="Accuracy and bytes of the wire formats.")
    parser.add_argument("--data", type=Path, required=True, help="directory of the four Fashion-MNIST .gz files")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    runs: dict[str, dict[str, Any]] = {}
    for wire in FORMATS:
        job = fashion(
            options.data,
            run={"epochs": options.epochs},
            algorithm={"name": "downpour", "wire": wire},
            topology={"servers": 2},
        )
        runs[wire] = train(job, RANKS)
        print(f"{wire}: test accuracy {runs[wire]['test_accuracy']:.4f}", file=sys.stderr, flush=True)
    reference = runs["fp32"]
    rows = [
        {
            "wire": wire,
            "accuracy": round(run["test_accuracy"], 4),
            "points of fp32": 100 * (run["test_accuracy"] - reference["test_accuracy"]),
            "MB pushed": run["bytes_pushed"] / 1e6,
            "times fewer": reference["bytes_pushed"] / run["bytes_pushed"],
            "samples/s": run["samples_per_second"],
        }
        for wire, run in runs.items()
    ]
    print(table(rows))
    print(save("compression", rows))


if __name__ == "__main__":
    main()
