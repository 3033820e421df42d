"""DiLoCo with a quorum and one slow worker of three: rounds per second, dropped changes, accuracy.

    pip install -r benchmarks/requirements.txt
    python benchmarks/quorum.py

Trains 64-64-10 on the digits by DiLoCo with three workers, of which one takes three times as long for its gradients.
Every gradient takes 50 ms by sleeping, so that it makes little difference that ranks share cores. Prints a table, and
writes it to results/quorum.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py

from harness import parse, save, table
from training import Job, train

WORKERS, WINDOW = 3, 8
#: A round of a fast worker takes 0.4 s, and one of the slow worker 1.2 s.
CASES: dict[str, dict[str, Any]] = {
    "all": {},
    "quorum 2": {"quorum": 2},
    "quorum 2, grace 0.1": {"quorum": 2, "grace": 0.1},
    "quorum 2, grace 1": {"quorum": 2, "grace": 1.0},
}


def main() -> None:
    """Run all, print the table and save it."""
    parser = argparse.ArgumentParser(description="DiLoCo with a quorum and one slow worker of three.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    options = parse(parser, epochs=1, seeds=1, only=["quorum 2"])

    rows = []
    for case in options.only:
        keys = CASES[case]
        for seed in range(options.seeds):
            rows.append({"case": case, "seed": seed, **measure(job(keys, options.epochs, seed), 1 if keys else 0)})
            print(rows[-1], file=sys.stderr, flush=True)
    print(table(rows))
    print(save("quorum", rows))


def job(keys: dict[str, Any], epochs: int, seed: int) -> Job:
    """Return the job of a case."""
    hidden = {"type": "dense", "units": 64, "activation": "relu"}
    return {
        "run": {"epochs": epochs, "seed": seed},
        "data": {"source": "digits", "batch": 32, "portion": 32},
        "model": {"layer": [hidden, {"type": "dense", "units": 10}]},
        "algorithm": {"name": "diloco", "window": WINDOW, "rate": 0.003, **keys},
        "debug": {"gradient_seconds": 0.05, "slow_worker": 0, "slow_factor": 3.0},
    }


def measure(job: Job, servers: int) -> dict[str, Any]:
    """Train, and return a row of the table."""
    with tempfile.TemporaryDirectory() as directory:
        summary = train(job, 1 + servers + WORKERS, keep=Path(directory))
        saved = Path(summary["run_dir"]).glob("checkpoints/*/shard-0.h5")
        with h5py.File(max(saved, key=lambda path: int(path.parent.name))) as file:
            rounds = int(file.attrs["clock"])
    seconds = summary["seconds"]
    return {
        "rounds": rounds,
        "seconds": seconds,
        "rounds a second": rounds / seconds,
        "dropped": summary["dropped"],
        "test_loss": summary["test_loss"],
        "accuracy": summary["test_accuracy"],
    }


if __name__ == "__main__":
    main()
