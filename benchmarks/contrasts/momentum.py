"""Asynchrony acts as momentum, 1 - 1/n with n workers.

With n workers whose times are exponential, the mean of asynchronous SGD over all interleavings moves as SGD with
momentum 1 - 1/n at the rate eta / n. Here it is the mean path over seeds on a quadratic with four curvatures, to which
both numbers are fitted. Then explicit momentum is added, at the best of several rates, on a quadratic with the
condition number 100. The paper trains convolutional networks.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from contrasts import Case, Finding
from mpidl.algorithms import Downpour
from mpidl.engines.virtual import Times
from mpidl.engines.virtual.times import Exponential
from mpidl.rules import Momentum, Sgd
from without_data import Objective, engine

TITLE = "Asynchrony as momentum (Mitliagkas, Zhang, Hadjis, Re 2016)"
WORKERS, CURVATURES = (1, 2, 4, 8, 16), np.array([0.02, 0.05, 0.1, 0.2])
#: Of the explicit momentum.
FEW, MOMENTA, RATES, HARD = (
    (1, 2, 4),
    (0.0, 0.3, 0.6, 0.8),
    (0.06, 0.12, 0.25, 0.5, 1.0, 1.8, 3.0),
    np.array([0.01, 0.1, 1]),
)
TIMES = Times(Exponential(1.0))


def cases(quick: bool) -> dict[str, Case]:
    """Return a fit for each number of workers, and for some of them a run for each explicit momentum."""
    fits = {fitted(n): partial(fit, n, 20 if quick else 400) for n in ((2,) if quick else WORKERS)}
    runs = {with_explicit(n, momentum): partial(distance, n, momentum) for n in FEW for momentum in MOMENTA}
    return fits if quick else fits | runs


def fitted(workers: int) -> str:
    """Return the name of a fit."""
    return f"mean path, {workers} workers"


def with_explicit(workers: int, momentum: float) -> str:
    """Return the name of a run with explicit momentum."""
    return f"momentum {momentum:g}, {workers} workers"


def fit(workers: int, seeds: int, steps: int = 100) -> list[float]:
    """Return momentum and rate of the heavy ball that has the mean path, by least squares."""
    total = np.zeros((steps + 1, CURVATURES.size))
    for seed in range(seeds):
        path = [np.ones(CURVATURES.size)]
        model = Objective(path[0], lambda x: CURVATURES * x)
        engine(
            Downpour(), model, workers, steps, TIMES, Sgd(1.0), seed,
            on_applied=lambda shard, *about, path=path: path.append(shard.parameters.copy()),
        ).run()  # fmt: skip
        total += path
    mean = total / seeds
    change = np.diff(mean, axis=0)
    columns = np.stack([change[:-1].ravel(), -(CURVATURES * mean[1:-1]).ravel()], axis=1)
    return np.linalg.lstsq(columns, change[1:].ravel(), rcond=None)[0].tolist()


def distance(workers: int, momentum: float, seeds: int = 3, steps: int = 400) -> float:
    """Return the distance to the minimum at the best rate, the geometric mean over seeds."""
    best = np.inf
    for rate in RATES:
        logarithms = []
        for seed in range(seeds):
            rule = Momentum(rate, momentum)
            cluster = engine(Downpour(), Objective(np.ones(3), lambda x: HARD * x), workers, steps, TIMES, rule, seed)
            with np.errstate(over="ignore", invalid="ignore"):
                cluster.run()
            logarithms.append(np.log(np.abs(cluster.parameters()).max()))
        best = np.fmin(best, np.exp(np.mean(logarithms)))
    return float(best)


def findings(runs: dict[str, Any]) -> list[Finding]:
    """Return what was fitted, and the best explicit momenta."""
    found = []
    for n in WORKERS:
        if fitted(n) in runs:
            momentum, rate = runs[fitted(n)]
            paper, here = f"{1 - 1 / n:.3f}, {1 / n:.3f}", f"{momentum:.3f}, {rate:.3f}"
            holds = abs(momentum - 1 + 1 / n) < 0.02 and abs(rate - 1 / n) < 0.02
            found.append(Finding(f"momentum and rate / eta, n = {n}", paper, here, holds))
    if with_explicit(FEW[0], MOMENTA[0]) in runs:
        best = [min(MOMENTA, key=lambda momentum: runs[with_explicit(n, momentum)]) for n in FEW]
        paper = "has to be tuned to the asynchrony; with much of it, even a negative one may help (abstract)"
        here, holds = ", ".join(f"{momentum:g}" for momentum in best), best[0] > best[-1]
        found.append(Finding(f"best explicit momentum, n = {', '.join(map(str, FEW))}", paper, here, holds))
    return found


def draw(figure: Any, runs: dict[str, Any]) -> None:
    """Draw the fitted momenta beside 1 - 1/n, and the distances over the explicit momentum."""
    left, right = figure.subplots(1, 2)
    workers = [n for n in WORKERS if fitted(n) in runs]
    left.plot(workers, [1 - 1 / n for n in workers], "-", color="grey", label="paper: 1 - 1/n")
    left.plot(workers, [runs[fitted(n)][0] for n in workers], "o", label="mean path")
    left.set(xlabel="workers n", ylabel="momentum", xscale="log", ylim=(-0.05, 1))
    left.set_xticks(workers, map(str, workers))
    left.legend()
    for n in FEW:
        distances = [runs.get(with_explicit(n, momentum), np.nan) for momentum in MOMENTA]
        right.plot(MOMENTA, distances, "o-", label=f"n = {n}")
    right.set(xlabel="explicit momentum", ylabel="distance to the minimum, best rate", yscale="log")
    right.legend()
