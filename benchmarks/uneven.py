"""Data of two labels for each worker, one of them slow: accuracies at equal numbers of samples.

    python benchmarks/uneven.py [--split label:2] [--replicas 8] [--slow 5] [--only NAME ...]

Trains 784-128-10 on Fashion-MNIST, on a virtual cluster whose workers have data of their own, and whose gradients take
about 1 s, but 5 s on one worker. All algorithms see the same number of samples, at rates that fall to 0 on half a
cosine. Prints a table of test accuracies, also of the test samples with labels of the slow worker alone; writes it to
results/uneven.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import mpidl
from harness import parse, save, table
from mpidl.data.labels import Deal
from training import Job, add_data, fashion, simulate, with_sections

#: The worker that is slow, and the seed by which data are dealt out.
SLOW, SEED = 0, 0
#: Algorithms, each with its best rate of several with Adagrad.
RATES = {"sync": 0.02, "downpour": 0.02, "rescaled": 0.02, "ringleader": 0.005}


def main() -> None:
    """Run all, print the table and save it."""
    parser = argparse.ArgumentParser(description="Workers with different data, one of them slow.")
    add_data(parser)
    parser.add_argument("--split", default="label:2", help="as data.split")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--slow", type=float, default=5.0, help="factor of the time of one worker's gradients")
    parser.add_argument("--only", nargs="*", choices=list(RATES), default=list(RATES))
    options = parse(parser, epochs=1, replicas=2, only=["rescaled"])

    job = fashion(
        options.data, (128,), run={"epochs": options.epochs, "seed": SEED}, rate={"schedule": "cosine"},
        data={"split": options.split, "batch": 32},
        virtual={
            "compute": "jitter:1:0.1", "latency": "0.001", "slow": [{"replica": SLOW, "factor": options.slow}]
        },
    )  # fmt: skip
    test, labels = of_slow_worker(options)
    rows = []
    for name in options.only:
        rows.append({"algorithm": name} | accuracies(job, name, options.replicas, test, labels))
        print(rows[-1], file=sys.stderr, flush=True)
    print(table(rows))
    print(save("uneven", rows))


def of_slow_worker(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the test samples, and the labels of the slow worker's training samples."""
    dataset = mpidl.data.Idx(str(options.data)).open()
    labels = dataset.train.labels(0, dataset.train.samples)
    assert labels is not None
    assert dataset.test is not None
    own = Deal.parse(options.split).shares(labels, options.replicas, SEED)[SLOW]
    return dataset.test.gather(np.arange(dataset.test.samples)), np.unique(labels[own])


def accuracies(job: Job, name: str, replicas: int, test: Any, labels: Any) -> dict[str, Any]:
    """Train; return the seconds of virtual time, and the accuracies and the loss after it."""
    job = with_sections(job, algorithm={"name": name}, server={"rule": "adagrad", "rate": RATES[name]})
    with tempfile.TemporaryDirectory() as directory:
        run = simulate(job, replicas, keep=Path(directory))
        right = mpidl.load(run["run_dir"]).predict(test.inputs).argmax(axis=1) == test.targets
    return {
        "seconds": round(run["seconds"]),
        "accuracy": run["test_accuracy"],
        "loss": round(run["test_loss"], 4),
        "of the slow worker": round(float(right[np.isin(test.targets, labels)].mean()), 4),
    }


if __name__ == "__main__":
    main()
