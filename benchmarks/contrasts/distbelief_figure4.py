"""DistBelief's figure 4: the order of methods by the time to a fixed accuracy.

The paper trains its speech network to an accuracy of 16 %, on up to 2000 machines for Sandblaster. Here 64-64-10 is
trained on the digits, in batches of 8, to an accuracy of 0.92. A gradient takes about 1 s, so that a pass of all data
takes a replica 180 s, and Sandblaster has work for 180 replicas. Each method has the best of a few rates and the median
of three seeds; between two evaluations, accuracies are interpolated.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from contrasts import Case, Finding, digits, simulate
from training import curve

TITLE = "Time to an accuracy of 0.92, DistBelief's figure 4 (Dean et al. 2012)"
ACCURACY, CHANCE, EPOCHS, SEEDS = 0.92, 0.1, 40, (0, 1, 2)
DOWNPOUR, ADAGRAD, SANDBLASTER = "Downpour", "Downpour with Adagrad", "Sandblaster"
#: For each method: the numbers of replicas, each with its rates.
RATES: dict[str, dict[int, tuple[float, ...]]] = {
    DOWNPOUR: {1: (0.05, 0.1, 0.2), 5: (0.05, 0.1, 0.2), 20: (0.02, 0.03, 0.05)},
    ADAGRAD: {20: (0.01, 0.02, 0.03), 50: (0.005, 0.01, 0.02), 100: (0.005, 0.01), 200: (0.005, 0.0075)},
    SANDBLASTER: {20: (0.0,), 60: (0.0,), 180: (0.0,)},
}
#: The paper's order, from the slowest to the fastest; its Sandblaster has 2000 machines.
ORDER = ((DOWNPOUR, 1), (DOWNPOUR, 20), (ADAGRAD, 20), (SANDBLASTER, 180), (ADAGRAD, 200))


def cases(quick: bool) -> dict[str, Case]:
    """Return a run for each method, number of replicas, rate and seed."""
    if quick:
        return {name(DOWNPOUR, 20, 0.05, 0): partial(seconds, DOWNPOUR, 20, 0.05, 0)}
    return {
        name(method, replicas, rate, seed): partial(seconds, method, replicas, rate, seed)
        for method, sizes in RATES.items()
        for replicas, rates in sizes.items()
        for rate in rates
        for seed in SEEDS
    }


def name(method: str, replicas: int, rate: float, seed: int) -> str:
    """Return the name of a case."""
    return f"{method}, {replicas}, rate {rate:g}, seed {seed}"


def seconds(method: str, replicas: int, rate: float, seed: int) -> float:
    """Return the seconds to the accuracy, infinity if it isn't reached."""
    algorithm = "sandblaster" if method == SANDBLASTER else "downpour"
    rule = {} if method == SANDBLASTER else {"rule": "adagrad" if method == ADAGRAD else "sgd", "rate": rate}
    job = digits(
        run={
            "epochs": EPOCHS,
            "seed": seed,
            "target": f"accuracy >= {ACCURACY}",
            "terminate_on_nan": False,
        },
        data={"batch": 8, "portion": 8},
        algorithm={"name": algorithm},
        server=rule,
        virtual={"compute": "jitter:1:0.1", "latency": 0.001, "service": 0.0, "bandwidth": 1e12},
    )
    after, reached = curve(simulate(job, replicas))
    times, accuracies = np.array([0.0, *after]), np.array([CHANCE, *reached])
    over = int(np.argmax(accuracies >= ACCURACY))
    if accuracies[over] < ACCURACY:
        return np.inf
    return float(np.interp(ACCURACY, accuracies[over - 1 : over + 1], times[over - 1 : over + 1]))


def best(runs: dict[str, float]) -> dict[tuple[str, int], float]:
    """Return the time with the best rate, for each method and number of replicas."""
    found: dict[tuple[str, int], float] = {}
    for method, sizes in RATES.items():
        for replicas, rates in sizes.items():
            of_rates = [[runs.get(name(method, replicas, rate, seed)) for seed in SEEDS] for rate in rates]
            done = [[each for each in of_rate if each is not None] for of_rate in of_rates]
            found[method, replicas] = min((median(each) for each in done if each), default=np.inf)
    return found


def findings(runs: dict[str, float]) -> list[Finding]:
    """Compare each method with the next one in the paper's order."""
    found = best(runs)
    return [
        Finding(
            f"{label(*slower)} against {label(*faster)}",
            "the latter is faster",
            f"{found[slower]:.0f} s and {found[faster]:.0f} s",
            found[faster] < found[slower],
        )
        for slower, faster in pairwise(ORDER)
    ]


def label(method: str, replicas: int) -> str:
    """Return the name of a method with its number of replicas."""
    return "SGD" if (method, replicas) == ORDER[0] else f"{method}, {replicas} replicas"


def draw(figure: Any, runs: dict[str, float]) -> None:
    """Draw the time of each method over the number of replicas, with the paper's order."""
    axes, found = figure.subplots(), best(runs)
    for method, sizes in RATES.items():
        axes.plot(list(sizes), [found[method, replicas] for replicas in sizes], "o-", label=method)
    for rank, place in enumerate(ORDER, start=1):
        if np.isfinite(found[place]):
            axes.annotate(f"  {rank}", (place[1], found[place]), fontsize="large", weight="bold")
    axes.set(xlabel="replicas", ylabel=f"seconds to an accuracy of {ACCURACY}", xscale="log", yscale="log")
    axes.legend(title="the paper's order: 1 is slowest, 5 fastest")
    axes.grid(alpha=0.3, which="both")
