"""Sandblaster: L-BFGS against SciPy's and PyTorch's, with a slow worker, against Downpour, and against other methods.

    pip install -r benchmarks/requirements.txt scipy
    python benchmarks/sandblaster.py [--only PART ...]

Six parts, on Fashion-MNIST except for the module and the methods:

- "logistic": multinomial logistic regression with L2 in float64, from zeros: evaluations to SciPy's objective.
- "evaluation": seconds of an evaluation of 784-1024-1024-10, by SciPy on the same gradient code and with workers.
- "slow": seconds of an evaluation with one of three workers ten times slower, with backups and without; and on a
  virtual cluster of 1000 replicas whose portions take exponential times.
- "module": the physics-informed network of jobs/torch_burgers.toml, five seeds, with 3 workers: evaluations to the
  objective of SciPy's converged run; SciPy itself comes as near after about half of its evaluations.
- "methods": the same network with 16 units, exact measurements and no cost of parameters, three seeds: the objective
  after 100, 300 and 1000 evaluations by each method.
- "network": 784-1024-1024-10 to its best test accuracy, beside Downpour with Adagrad; over time and over passes.

Prints a table for each and writes them to results/sandblaster-PART.json, the curves to results/sandblaster.png.
"""

from __future__ import annotations

import argparse
import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

import mpidl
from harness import QUICK, parse, require, save, table
from mpidl.algorithms import Sandblaster
from mpidl.config import toml
from mpidl.data import Portions
from mpidl.nn import Network
from mpidl.nn.losses import Regularisation
from mpidl.torch import TorchModel
from training import UNITS, add_data, curve, fashion, plot, simulate, train, with_sections

ROOT = Path(__file__).parents[1]

#: Relative difference of objectives that counts as equal.
EQUAL = 1e-6
L2 = 1e-4


def main() -> None:
    """Run the requested parts."""
    parts = {
        "logistic": logistic, "evaluation": evaluation, "slow": slow, "module": module, "methods": methods,
        "network": network,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description="Sandblaster L-BFGS.")
    add_data(parser)
    parser.add_argument("--only", nargs="*", choices=list(parts), default=list(parts))
    options = parse(parser, only=["evaluation"])
    if "network" in options.only:
        require("matplotlib")
    for name in options.only:
        rows = parts[name](options.data)
        print(table(rows))
        print(save(f"sandblaster-{name}", rows))


def objective(model: Network, data: mpidl.Dataset, batch: int) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return SciPy's objective: the loss and gradient of all training data, computed batch by batch."""
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

    source = mpidl.data.Idx(str(directory))
    data = source.open()
    found = minimize(
        objective(model(), data, 500), np.zeros(7850), jac=True, method="L-BFGS-B",
        options={"maxcor": 10, "maxfun": 5000, "maxiter": 5000},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as runs:
        mpidl.train(
            model(), source, algorithm=Sandblaster(), batch=500, portion=500, epochs=2 * found.nfev, dir=runs, name="r"
        )
        lines = (Path(runs) / "r" / "metrics.jsonl").read_text().splitlines()
    evaluations, iteration = first_below([json.loads(line) for line in lines], found.fun * (1 + EQUAL))
    return [
        {"optimiser": "SciPy L-BFGS-B", "evaluations": int(found.nfev), "iterations": int(found.nit),
         "objective": f"{found.fun:.9f}", "of SciPy's evaluations": 1.0},
        {"optimiser": "Sandblaster", "evaluations": evaluations, "iterations": iteration["number"],
         "objective": f"{iteration['objective']:.9f}", "of SciPy's evaluations": evaluations / found.nfev},
    ]  # fmt: skip


def first_below(records: list[dict[str, Any]], goal: float) -> tuple[int, dict[str, Any]]:
    """Return the evaluations up to the first reported iteration whose objective is no larger than `goal`, and it.

    Not all iterations are reported, but all evaluations are counted: each is an epoch.
    """
    for record in records:
        if "iteration" in record and record["iteration"]["objective"] <= goal:
            return round(record["epoch"]), record["iteration"]
    raise SystemExit(f"no iteration reached the objective {goal}")


def iterations(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the iterations in a run's records."""
    each = (record["iteration"] for record in run["records"] if "iteration" in record)
    return list({iteration["number"]: iteration for iteration in each}.values())


def evaluation(directory: Path) -> list[dict[str, Any]]:
    """Return seconds of an evaluation, with the shares of the coordinator and the network."""
    layers = [*(mpidl.Dense(units, activation="relu") for units in UNITS), mpidl.Dense(10)]
    model, data = Network(layers, (28, 28)), mpidl.data.Idx(str(directory)).open()
    serial = objective(model, data, 500)
    serial(model.parameters.copy())
    seconds = []

    def timed(x: np.ndarray) -> tuple[float, np.ndarray]:
        started = time.perf_counter()
        loss, gradient = serial(x)
        seconds.append(time.perf_counter() - started)
        return loss, gradient.astype(np.float64)

    rows = []
    for turn in range(1 if QUICK else 2):
        started = time.perf_counter()
        seconds.clear()
        minimize(timed, model.parameters.astype(np.float64), jac=True, method="L-BFGS-B", options={"maxfun": 4})
        each = (time.perf_counter() - started) / len(seconds)
        rows.append({"turn": turn, "optimiser": "SciPy L-BFGS-B", "workers": 1, "seconds an evaluation": each})
        for workers in (1, 2):
            run = train(batch_job(directory, UNITS, epochs=5), 2 + workers)
            done = iterations(run)
            evaluations = run["fetches"] / workers
            messages = run["pushes"] + sum(each["messages"] for each in done)
            operating = sum(each["operating"] for each in done)
            rows.append(
                {
                    "turn": turn,
                    "optimiser": "Sandblaster",
                    "workers": workers,
                    "seconds an evaluation": run["seconds"] / evaluations,
                    "messages an iteration": messages / len(done),
                    "MB an iteration": (run["bytes_pushed"] + run["bytes_fetched"]) / len(done) / 1e6,
                    "of the time coordinating": operating / run["seconds"],
                }
            )
    return rows


def batch_job(directory: Path, units: tuple[int, ...], epochs: int, **sections: dict[str, Any]) -> dict[str, Any]:
    """Return a job of Sandblaster."""
    data = {"batch": 500, "portion": 500}
    return fashion(
        directory, units, run={"epochs": epochs}, algorithm={"name": "sandblaster"}, **({"data": data} | sections)
    )


def slow(directory: Path) -> list[dict[str, Any]]:
    """Return seconds of an evaluation with replicas of different speeds, over the ideal."""
    rows = []
    gradient, portion, factor = 0.2, 2000, 10.0
    ideal = 60000 / portion * gradient / (2 + 1 / factor)
    for backups in (True, False):
        job = batch_job(
            directory, (128,), epochs=6, data={"batch": portion, "portion": portion},
            debug={"gradient_seconds": gradient, "slow_worker": 2, "slow_factor": factor},
        )  # fmt: skip
        job["algorithm"] |= {"unit": 1, "backups": backups}
        run = train(job, 5)
        rows.append(compared("3 ranks, one of them ten times slower", backups, run, ideal))
    replicas, each = 1000, 20
    for backups in (True, False):
        job = batch_job(
            directory, (16,), epochs=4, virtual={"compute": "exponential:1", "latency": "0.001"},
            data={"batch": 3, "portion": 3},
        )  # fmt: skip
        job["algorithm"] |= {"unit": 1, "backups": backups}
        rows.append(compared("1000 virtual replicas", backups, simulate(job, replicas), float(each)))
    return rows


def compared(case: str, backups: bool, run: dict[str, Any], ideal: float) -> dict[str, Any]:
    """Return a row: seconds of an evaluation beside the ideal."""
    done = iterations(run)
    evaluations = sum(iteration["evaluations"] for iteration in done)
    seconds = run["seconds"] / evaluations
    return {
        "case": case,
        "backups": "on" if backups else "off",
        "seconds an evaluation": seconds,
        "ideal": ideal,
        "of the ideal": seconds / ideal,
        "issued": sum(iteration["backups"] for iteration in done) / evaluations,
        "won": sum(iteration["won"] for iteration in done) / evaluations,
    }


def module(_: Path) -> list[dict[str, Any]]:
    """Return evaluations of a physics-informed network in PyTorch, by three optimisers."""
    torch_burgers = burgers()
    split = torch_burgers.data().open().as_double().train
    batch = split.gather(np.arange(split.samples))
    rows = []
    for seed in range(5):
        values: list[float] = []
        model = TorchModel(*torch_burgers.model(None, seed))
        start = model.parameters.copy()

        def evaluate(x: np.ndarray, model: TorchModel = model, values: list[float] = values) -> tuple[float, Any]:
            model.parameters[:] = x
            value, gradient = model.loss_and_gradient(batch)
            values.append(value)
            return value, gradient.copy()

        converged = {"maxcor": 10, "ftol": 0, "gtol": 1e-9, "maxfun": 5000, "maxiter": 5000}
        found = minimize(evaluate, start, jac=True, method="L-BFGS-B", options=converged)
        goal = found.fun * (1 + EQUAL)
        scipy, torchs = reached(values, goal), reached(by_torch(torch_burgers, seed, batch), goal)
        job = toml.read(ROOT / "jobs" / "torch_burgers.toml")
        run = train(with_sections(job, run={"seed": seed, "epochs": int(found.nfev)}), 5)
        ours, _ = first_below(run["records"], goal)
        rows.append(
            {
                "seed": seed,
                "objective": f"{found.fun:.9f}",
                "SciPy, converged": int(found.nfev),
                "SciPy, as near": scipy,
                "torch.optim.LBFGS": torchs,
                "Sandblaster": ours,
                "of SciPy's evaluations": ours / found.nfev,
            }
        )
    return rows


def burgers() -> ModuleType:
    """Return the module of the physics-informed network."""
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    return importlib.import_module("jobs.torch_burgers")


def methods(_: Path) -> list[dict[str, Any]]:
    """Return objectives after numbers of evaluations, by each method."""
    torch_burgers, rows = burgers(), []
    torch_burgers.NOISE = torch_burgers.DECAY = 0.0  # type: ignore[attr-defined]
    for seed in range(3):
        for method in ("lbfgs", "bfgs", "ssbroyden"):
            torch.manual_seed(seed)
            with tempfile.TemporaryDirectory() as runs:
                mpidl.train(
                    torch_burgers.Burgers(16), torch_burgers.data(), loss=torch_burgers.loss, dir=runs, name="r",
                    algorithm=Sandblaster(method=method), batch=1000, portion=1000, epochs=1000,
                )  # fmt: skip
                lines = (Path(runs) / "r" / "metrics.jsonl").read_text().splitlines()
            found = [record for record in map(json.loads, lines) if "iteration" in record]
            rows.append({"seed": seed, "method": method})
            for most in (100, 300, 1000):
                lowest = min(each["iteration"]["objective"] for each in found if each["epoch"] <= most)
                rows[-1][f"after {most}"] = f"{lowest:.1e}"
    return rows


def by_torch(torch_burgers: ModuleType, seed: int, batch: mpidl.Batch) -> list[float]:
    """Return the objective at each evaluation of PyTorch's own L-BFGS."""
    model, loss = torch_burgers.model(None, seed)
    inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
    settings = {"max_iter": 5000, "max_eval": 5000, "history_size": 10, "tolerance_grad": 1e-9, "tolerance_change": 0}
    optimiser = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe", **settings)
    values: list[float] = []

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        value = loss(model(inputs), targets)
        value.backward()
        values.append(value.item())
        return value

    optimiser.step(closure)
    return values


def reached(values: list[float], goal: float) -> int | None:
    """Return the number of the first evaluation at which the objective is no larger than `goal`."""
    return next((number for number, value in enumerate(values, 1) if value <= goal), None)


def network(directory: Path) -> list[dict[str, Any]]:
    """Return the accuracy of a network trained in batches, beside Downpour's, and draw the curves."""
    normalise = {"mean": 0.286, "std": 0.353}
    jobs = {
        "Sandblaster": fashion(
            directory, run={"epochs": 110}, data={"batch": 500, "portion": 500, "normalise": normalise},
            algorithm={"name": "sandblaster", "history": 20, "batch": 0.5, "overlap": 0.5},
        ),
        "Downpour with Adagrad": fashion(
            directory, run={"epochs": 10}, data={"normalise": normalise}, server={"rule": "adagrad", "rate": 0.005}
        ),
    }  # fmt: skip
    runs = {name: train(job, 4) for name, job in jobs.items()}
    for over, label in (("time", "seconds of training"), ("epoch", "passes through the data")):
        curves = {name: curve(run, over) for name, run in runs.items()}
        print(plot(f"sandblaster-{over}", "Fashion-MNIST, 784-1024-1024-10", curves, label, "test accuracy"))
    return [
        {
            "algorithm": name,
            "best accuracy": max(curve(run)[1]),
            "accuracy": run["test_accuracy"],
            "passes": run["epochs"],
            "seconds": run["seconds"],
        }
        for name, run in runs.items()
    ]


if __name__ == "__main__":
    main()
