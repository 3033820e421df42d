"""What wire formats cost in accuracy and save in bytes: Downpour on Fashion-MNIST, on real ranks.

    pip install -r benchmarks/requirements.txt
    python benchmarks/compression.py --data DIRECTORY

Trains 784-1024-1024-10 on 5 ranks (two servers, two workers) for 10 epochs with each pair of formats in turn, of pushes
and of fetches, all else at its default. Prints a table of test accuracy, bytes and samples/s, and writes it to
results/compression.json. Between two runs of one format the accuracy differs by about 0.2 points.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from harness import save, table
from training import fashion, train

RANKS = 5
#: How pushes travel, and how fetches.
FORMATS = (
    ("fp32", "fp32"), ("bf16", "fp32"), ("int8", "fp32"), ("topk:0.01", "fp32"), ("onebit", "fp32"), ("bf16", "bf16"),
    ("int8", "int8"), ("topk:0.01", "int8"), ("topk:0.01", "topk:0.1"), ("onebit", "onebit"),
)  # fmt: skip


def main() -> None:
    """Run all, print the table and save it."""
    parser = argparse.ArgumentParser(description="Accuracy and bytes of the wire formats.")
    parser.add_argument("--data", type=Path, required=True, help="directory of the four Fashion-MNIST .gz files")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    runs: dict[tuple[str, str], dict[str, Any]] = {}
    for wire, wire_fetch in FORMATS:
        job = fashion(
            options.data,
            run={"epochs": options.epochs},
            algorithm={"name": "downpour", "wire": wire, "wire_fetch": wire_fetch},
            topology={"servers": 2},
        )
        runs[wire, wire_fetch] = train(job, RANKS)
        accuracy = runs[wire, wire_fetch]["test_accuracy"]
        print(f"{wire}, {wire_fetch}: test accuracy {accuracy:.4f}", file=sys.stderr, flush=True)
    reference = runs["fp32", "fp32"]
    rows = [
        {
            "wire": wire,
            "wire_fetch": wire_fetch,
            "accuracy": round(run["test_accuracy"], 4),
            "points of fp32": 100 * (run["test_accuracy"] - reference["test_accuracy"]),
            "MB pushed": run["bytes_pushed"] / 1e6,
            "MB fetched": run["bytes_fetched"] / 1e6,
            "times fewer": _bytes(reference) / _bytes(run),
            "samples/s": run["samples_per_second"],
        }
        for (wire, wire_fetch), run in runs.items()
    ]
    print(table(rows))
    print(save("compression", rows))


def _bytes(run: dict[str, Any]) -> int:
    return int(run["bytes_pushed"] + run["bytes_fetched"])


if __name__ == "__main__":
    main()
