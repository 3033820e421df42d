"""How well a calibrated virtual cluster predicts the speed of real runs.

    pip install -r benchmarks/requirements.txt
    python benchmarks/prediction.py --data DIRECTORY

Trains 784-1024-1024-10 by Downpour on 4 ranks (two workers), and calibrates a virtual cluster on that run: what a
gradient, a copy and an update take, on as many cores as this machine has. Then predicts samples/s with 1, 2 and 3
workers, and trains with as many on real ranks; all this in several rounds, of which the medians count. Prints a table,
and writes it to results/prediction.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness import save, table
from training import fashion, simulate, train, with_sections


def main() -> None:
    """Calibrate, predict, measure, print the table and save it."""
    parser = argparse.ArgumentParser(description="Predicted and measured samples/s of Downpour.")
    parser.add_argument("--data", type=Path, required=True, help="directory of the four Fashion-MNIST .gz files")
    parser.add_argument("--steps", type=int, default=460, help="gradients of a run, less than an epoch")
    parser.add_argument("--rounds", type=int, default=5, help="calibrations and real runs")
    options = parser.parse_args()

    job = fashion(options.data, run={"steps": options.steps}, topology={"servers": 1})
    measured: dict[int, list[float]] = {1: [], 2: [], 3: []}
    predicted: dict[int, list[float]] = {1: [], 2: [], 3: []}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(options.rounds):
            calibration = train(with_sections(job, run={"name": f"calibration-{number}"}), 4, keep=Path(directory))
            virtual = {"calibration": calibration["run_dir"], "cores": len(os.sched_getaffinity(0))}
            for workers in measured:
                real, simulated = train(job, workers + 2), simulate(with_sections(job, virtual=virtual), workers)
                measured[workers].append(real["samples_per_second"])
                predicted[workers].append(simulated["samples_per_second"])
                figures = f"{measured[workers][-1]:.0f} samples/s, predicted {predicted[workers][-1]:.0f}"
                print(f"{workers} workers: {figures}", file=sys.stderr, flush=True)
    rows = [row(workers, measured[workers], predicted[workers]) for workers in measured]
    print(table(rows))
    print(save("prediction", rows))


def row(workers: int, measured: list[float], predicted: list[float]) -> dict[str, Any]:
    """Return a line of the table."""
    return {
        "workers": workers,
        "measured samples/s": median(measured),
        "least": min(measured),
        "most": max(measured),
        "predicted": median(predicted),
        "error": median(predicted) / median(measured) - 1,
    }


if __name__ == "__main__":
    main()
