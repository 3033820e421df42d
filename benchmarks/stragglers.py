"""The cost of one slow worker of three: asynchronous algorithms keep the others' speed, synchronous ones do not.

    pip install -r benchmarks/requirements.txt
    python benchmarks/stragglers.py

Trains 784-128-10 on Fashion-MNIST with three workers, of which one takes ten times as long for its gradients. Every
gradient takes 40 ms by sleeping, so that it makes no difference that ranks share cores. The sum of the workers' speeds
is measured with each kind of worker alone, by the same algorithm. Prints a table, and writes it to
results/stragglers.json.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from harness import parse, save, table
from training import add_data, fashion, train

#: Seconds of a gradient, and the factor of the slow worker.
GRADIENT, FACTOR = 0.04, 10.0
#: Algorithms in which all workers wait for the slowest: fewer steps suffice.
WAITING = ("ssp", "sync")
CASES: dict[str, dict[str, Any]] = {
    "downpour": {"name": "downpour"},
    "softsync, n = 1": {"name": "softsync", "n": 1},
    "softsync, n = 3": {"name": "softsync", "n": 3},
    "ssp, bound 3": {"name": "ssp", "bound": 3},
    "backup_sync, b = 1": {"name": "backup_sync", "backup": 1},
    "sync": {"name": "sync"},
}


def main() -> None:
    """Run all, print the table and save it."""
    parser = argparse.ArgumentParser(description="Three workers, one of them ten times slower.")
    add_data(parser)
    parser.add_argument("--steps", type=int, default=800, help="gradients of a run with three workers")
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    options = parse(parser, steps=40, only=["downpour"])

    rows = []
    for case in options.only:
        algorithm = CASES[case]
        alone = speed(options, algorithm, workers=1, steps=options.steps // 4)
        slow = speed(options, algorithm, workers=1, steps=options.steps // 40, slow=0)
        waiting = algorithm["name"] in WAITING
        together = speed(options, algorithm, workers=3, steps=options.steps // (8 if waiting else 1), slow=2)
        total = 2 * alone + slow
        rows.append(
            {
                "algorithm": case,
                "worker alone": alone,
                "slow one alone": slow,
                "sum of three": total,
                "three together": together,
                "of the sum": together / total,
            }
        )
        print(f"{case}: {together / total:.3f} of the sum", file=sys.stderr, flush=True)
    print(table(rows))
    print(save("stragglers", rows))


def speed(
    options: argparse.Namespace, algorithm: dict[str, Any], workers: int, steps: int, slow: int | None = None
) -> float:
    """Return samples/s of a run, in which `slow` is the number of the slow worker."""
    debug: dict[str, Any] = {"gradient_seconds": GRADIENT, "slow_factor": FACTOR}
    if slow is not None:
        debug["slow_worker"] = slow
    job = fashion(options.data, (128,), run={"steps": steps}, data={"portion": 128}, algorithm=algorithm, debug=debug)
    servers = 0 if algorithm["name"] == "sync" else 1
    return train(job, 1 + servers + workers)["samples_per_second"]


if __name__ == "__main__":
    main()
