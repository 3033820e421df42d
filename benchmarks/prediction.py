"""How well a calibrated virtual cluster predicts the speed of real runs.

    pip install -r benchmarks/requirements.txt
    python benchmarks/prediction.py --data DIRECTORY

Trains 784-1024-1024-10 by Downpour on 4 ranks (two workers), and calibrates a virtual cluster on that run: what a
gradient, a copy and an update take, on as many cores as this machine has. Then predicts samples/s with 1, 2 and 3
workers, and trains with as many on real ranks, in turn. Prints a table, and writes it to results/prediction.json.
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
    parser.add_argument("--steps", type=int, default=800, help="gradients of a run")
    parser.add_argument("--rounds", type=int, default=3, help="real runs with each number of workers")
    options = parser.parse_args()

    job = fashion(options.data, run={"steps": options.steps}, topology={"servers": 1})
    measured: dict[int, list[float]] = {1: [], 2: [], 3: []}
    with tempfile.TemporaryDirectory() as directory:
        calibration = train(with_sections(job, run={"name": "calibration"}), 4, keep=Path(directory))
        for _ in range(options.rounds):
            for workers, speeds in measured.items():
                speeds.append(train(job, workers + 2)["samples_per_second"])
                print(f"{workers} workers: {speeds[-1]:.0f} samples/s", file=sys.stderr, flush=True)
        virtual = {"calibration": calibration["run_dir"], "cores": len(os.sched_getaffinity(0))}
        job = with_sections(job, virtual=virtual)
        rows = [row(workers, speeds, simulate(job, workers)) for workers, speeds in measured.items()]
    print("calibration:", {key: float(f"{value:.3g}") for key, value in calibration["timing"].items()})
    print(table(rows))
    print(save("prediction", rows))


def row(workers: int, speeds: list[float], predicted: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the table."""
    return {
        "workers": workers,
        "measured samples/s": median(speeds),
        "least": min(speeds),
        "most": max(speeds),
        "predicted": predicted["samples_per_second"],
        "error": predicted["samples_per_second"] / median(speeds) - 1,
    }


if __name__ == "__main__":
    main()
