"""Asynchronous SGD leans to the data of fast workers; rates in proportion to computing times correct that.

Two workers with the objectives (x - 0)^2 / 2 and (x - 1)^2 / 2, of which the second is slower by a factor, show where
training settles. Then softmax regression on noisy synthetic data, 5 workers with the samples of 2 classes each, one of
them 5 times slower, shows accuracy at equal numbers of samples.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from contrasts import Case, Finding, simulate
from mpidl.algorithms import ALGORITHMS
from mpidl.engines.virtual import Times
from mpidl.engines.virtual.times import Jitter
from mpidl.rules import Sgd
from training import Run
from without_data import Objective, engine, with_own_gradients

TITLE = "Rescaled asynchronous SGD (Mahran, Maranjyan, Richtarik 2026)"
METHODS, FACTORS, STEPS = ("downpour", "rescaled", "ringleader"), (1, 2, 5, 10), 3000
WORKERS, SLOW, EPOCHS = 5, 5.0, 8
#: Rates of the accuracies. A round of sync or ringleader is a step by the mean of all workers' gradients.
RATES = {"sync": 0.01, "downpour": 0.001, "rescaled": 0.001, "ringleader": 0.01}


def cases(quick: bool) -> dict[str, Case]:
    """Return where each method settles for each factor, and an accuracy of each."""
    settled = {name(method, factor): partial(settle, method, factor) for method in METHODS for factor in FACTORS}
    if quick:
        return {key: settled[key] for key in (name("downpour", 5), name("rescaled", 5))}
    return settled | {method: partial(train, method) for method in RATES}


def name(method: str, factor: int) -> str:
    """Return the name of a case."""
    return f"{method}, {factor} times slower"


def settle(method: str, factor: int) -> float:
    """Return the mean parameter in the second half of a run."""
    path: list[float] = []
    times = Times(Jitter(1.0, 0.05), slow={1: float(factor)})
    algorithm = with_own_gradients(ALGORITHMS[method], lambda number, x: x - number)()
    nothing = Objective(np.zeros(1), np.zeros_like)
    engine(
        algorithm, nothing, 2, STEPS, times, Sgd(0.02), 0,
        on_applied=lambda shard, *about: path.append(float(shard.parameters[0])),
    ).run()  # fmt: skip
    return float(np.mean(path[len(path) // 2 :]))


def train(method: str) -> Run:
    """Train with one slow worker."""
    return simulate(
        {
            "run": {"epochs": EPOCHS},
            "data": {
                "source": "synthetic", "samples": 20000, "test_samples": 4000, "noise": 4.0,
                "batch": 32, "portion": 32, "split": "label:2",
            },
            "model": {"layer": [{"type": "dense", "units": 10}]},
            "algorithm": {"name": method},
            "server": {"rule": "sgd", "rate": RATES[method]},
            "virtual": {"compute": "jitter:1:0.1", "latency": 0.001, "slow": [{"replica": 0, "factor": SLOW}]},
        },
        WORKERS,
    )  # fmt: skip


def findings(runs: dict[str, Any]) -> list[Finding]:
    """Compare where methods settle with the speed-weighted and the plain mean, and accuracies with those of sync."""
    found = []
    for method in METHODS:
        factors = [factor for factor in FACTORS if name(method, factor) in runs]
        if not factors:
            continue
        seen = [runs[name(method, factor)] for factor in factors]
        expected = [weighted(factor) if method == "downpour" else 0.5 for factor in factors]
        what = "the speed-weighted mean" if method == "downpour" else "the mean"
        found.append(
            Finding(
                f"where {method} settles, the second worker {listed(factors)} times slower",
                f"{what}: {listed(expected)}",
                listed(seen),
                bool(np.allclose(seen, expected, atol=0.03)),
            )
        )
    if "sync" in runs:
        sync, plain, *corrected = (runs[method]["test_accuracy"] for method in RATES)
        found.append(
            Finding(
                f"accuracy of {', '.join(RATES)}",
                "downpour biased, the corrected ones not",
                listed([sync, plain, *corrected]),
                all(sync - each < 0.03 and sync - each < (sync - plain) / 2 for each in corrected),
            )
        )
        seconds = [runs[method]["seconds"] for method in RATES]
        found.append(
            Finding(
                "seconds of the same runs",
                "no waiting for the slow worker",
                listed(seconds),
                max(seconds[1:]) < seconds[0] / 2,
            )
        )
    return found


def weighted(factor: float) -> float:
    """Return the mean of both optima, 0 and 1, weighted by the workers' speeds."""
    return 1 / (1 + factor)


def listed(values: Any) -> str:
    """Return numbers with three digits, separated by commas."""
    return ", ".join(f"{value:.0f}" if value >= 100 else f"{value:.3g}" for value in values)


def draw(figure: Any, runs: dict[str, Any]) -> None:
    """Draw where methods settle, over the factor, and test accuracy over time."""
    left, right = figure.subplots(1, 2)
    left.plot(FACTORS, [weighted(factor) for factor in FACTORS], ":", color="grey", label="speed-weighted mean")
    left.axhline(0.5, ls="--", color="grey", label="mean")
    for method, marker in zip(METHODS, "osx", strict=True):
        points = [(factor, runs[name(method, factor)]) for factor in FACTORS if name(method, factor) in runs]
        if points:
            left.plot(*zip(*points, strict=True), marker, label=method)
    left.set(xlabel="how many times slower the second worker is", ylabel="where x settles", ylim=(0, 0.6))
    left.legend(fontsize="small")
    shown = {method: runs[method]["test_accuracy"] for method in RATES if method in runs}
    right.plot(list(shown), list(shown.values()), "o")
    right.set(ylabel="test accuracy at equal samples")
