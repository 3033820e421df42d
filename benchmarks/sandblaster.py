"""Sandblaster L-BFGS: against SciPy's L-BFGS-B, with a slow worker, and against Downpour.

    pip install -r benchmarks/requirements.txt scipy
    python benchmarks/sandblaster.py --data DIRECTORY [--only PART ...]

Four parts, all on Fashion-MNIST but for the virtual cluster:

- "logistic": multinomial logistic regression with L2 in float64, from zeros: evaluations until SciPy's objective is met.
- "evaluation": seconds of an evaluation of 784-1024-1024-10 by SciPy on the same gradient code, and with 1 and 2 workers.
- "slow": seconds of an evaluation with one of three workers ten times slower, with backups and without; and on a virtual
  cluster of 1000 replicas whose portions take exponential times.
- "network": 784-1024-1024-10 to its best test accuracy, beside Downpour with Adagrad; over time and over passes.

Prints a table for each and writes them to results/sandblaster-PART.json, the curves to results/sandblaster.png.
"""

from __future__ import annotations

import argparse
import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

import mpidl
from harness import save, table
from mpidl.algorithms import Sandblaster
from mpidl.data import Portions
from mpidl.nn import Network
from mpidl.nn.regularisation import Regularisation
from training import curve, fashion, plot, simulate, train

#: Relative difference of objectives that counts as equal.
EQUAL = 1e-6
L2 = 1e-4


def main() -> None:
    """Run the parts that are asked for."""
    parts = {"logistic": logistic, "evaluation": evaluation, "slow": slow, "network": network}
    parser = argparse.ArgumentParser(description="Sandblaster L-BFGS.")
    parser.add_argument("--data", type=Path, required=True, help="directory of the four Fashion-MNIST .gz files")
    parser.add_argument("--only", nargs="*", choices=list(parts), default=list(parts))
    options = parser.parse_args()
    for name in options.only:
        rows = parts[name](options.data)
        print(table(rows))
        print(save(f"sandblaster-{name}", rows))


def objective(model: Network, data: mpidl.Dataset, batch: int) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return the loss and gradient of all training data as SciPy takes them, batch by batch."""
    portions = Portions(data.train.samples, batch, batch, seed=0)
    minibatches = [each for number in range(portions.per_epoch) for each in portions.minibatches(number)]
    total = np.empty(model.layout.size)

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        model.parameters[:] = x
        total.fill(0)
        loss = 0.0
        for minibatch in minibatches:
            part, gradient = model.loss_and_gradient(data.train.take(minibatch))
            gradient *= len(minibatch.indices)
            total[:] += gradient
            loss += part * len(minibatch.indices)
        return loss / data.train.samples, total / data.train.samples

    return evaluate


def logistic(directory: Path) -> list[dict[str, Any]]:
    """Return evaluations and objectives of a convex problem."""

    def model() -> Network:
        return Network(
            [mpidl.Dense(10, initialiser="zeros")], (28, 28), dtype="float64", regularisation=Regularisation(l2=L2)
        )

    source = mpidl.Idx(str(directory))
    data = source.open()
    found = minimize(
        objective(model(), data, 500), np.zeros(7850), jac=True, method="L-BFGS-B",
        options={"maxcor": 10, "maxfun": 5000, "maxiter": 5000},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as runs:
        mpidl.train(
            model(), source, algorithm=Sandblaster(), batch=500, portion=500, epochs=2 * found.nfev, dir=runs, name="r"
        )
        iterations = records(Path(runs) / "r")
    target = found.fun * (1 + EQUAL)
    evaluations = 0
    for iteration in iterations:
        evaluations += iteration["evaluations"]
        if iteration["objective"] <= target:
            break
    return [
        {"optimiser": "SciPy L-BFGS-B", "evaluations": int(found.nfev), "iterations": int(found.nit),
         "objective": f"{found.fun:.9f}", "of SciPy's evaluations": 1.0},
        {"optimiser": "Sandblaster", "evaluations": evaluations, "iterations": iteration["number"],
         "objective": f"{iteration['objective']:.9f}", "of SciPy's evaluations": evaluations / found.nfev},
    ]  # fmt: skip


def records(run: Path) -> list[dict[str, Any]]:
    """Return a run's iterations."""
    import json

    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    by_number = {line["iteration"]["number"]: line["iteration"] for line in lines if "iteration" in line}
    return list(by_number.values())
