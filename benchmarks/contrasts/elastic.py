"""EASGD and Downpour at long communication periods.

Four workers exchange every tau steps, by Downpour, which pushes the sum of its local steps, or by EASGD with
beta = 0.9. The best of several rates counts for each, as a mean over two seeds. The paper trains a convolutional
network on CIFAR-10; here it is 64-64-10 on the digits.
"""

from __future__ import annotations

from functools import partial
from statistics import mean
from typing import Any

from contrasts import Case, Finding, digits, simulate
from training import with_sections

TITLE = "EASGD and Downpour by communication period (Zhang et al. 2015)"
WORKERS, BETA = 4, 0.9
TAUS, RATES, SEEDS, EPOCHS = (1, 4, 16, 64), (0.03, 0.1, 0.3, 1.0), 2, 60
METHODS = ("downpour", "easgd")
#: Test error above which a run has not trained, and a difference of errors that could be chance.
FAILED, NOISE = 0.1, 0.003


def cases(quick: bool) -> dict[str, Case]:
    """Return a case for each method, period and rate."""
    if quick:
        return {name("easgd", 4, 0.1): partial(test_error, "easgd", 4, 0.1, seeds=1, epochs=1)}
    return {
        name(method, tau, rate): partial(test_error, method, tau, rate, SEEDS, EPOCHS)
        for method in METHODS
        for tau in TAUS
        for rate in RATES
    }


def name(method: str, tau: int, rate: float) -> str:
    """Return the name of a case."""
    return f"{method}, tau {tau}, rate {rate:g}"


def test_error(method: str, tau: int, rate: float, seeds: int, epochs: int) -> float:
    """Return the test error at the end, a mean over seeds."""
    job = digits(run={"epochs": epochs}, data={"batch": 32, "portion": 32})
    job["virtual"] = {"compute": "jitter:1:0.1", "latency": "0.001"}
    if method == "easgd":
        job["algorithm"] = {"name": "easgd", "tau": tau, "rate": rate, "alpha": BETA / WORKERS}
    else:
        job["algorithm"] = {"name": "downpour", "n_push": tau, "n_fetch": tau, "rate": rate}
        job["server"] = {"rule": "sgd", "rate": rate}
    runs = [simulate(with_sections(job, run={"seed": seed}), WORKERS) for seed in range(seeds)]
    return 1 - mean(run["test_accuracy"] for run in runs)


def best(runs: dict[str, Any], method: str) -> list[float]:
    """Return the lowest error at any rate, for each period."""
    return [min(runs[name(method, tau, rate)] for rate in RATES) for tau in TAUS]


def highest(runs: dict[str, Any], method: str) -> list[float]:
    """Return the highest rate that trains, for each period; 0 if none does."""
    return [max([rate for rate in RATES if runs[name(method, tau, rate)] < FAILED], default=0.0) for tau in TAUS]


def findings(runs: dict[str, Any]) -> list[Finding]:
    """Return the best errors, and the rates at which the methods are stable."""
    if len(runs) < len(METHODS) * len(TAUS) * len(RATES):
        return []
    downpour, easgd = best(runs, "downpour"), best(runs, "easgd")
    errors = " %, ".join
    stable = {method: highest(runs, method) for method in METHODS}
    periods = "tau = 1, 4, 16, 64"
    return [
        Finding(
            f"Downpour's best test error, {periods}",
            "best for 1 and 4 (section 5, figure 2)",
            errors(f"{error:.1%}"[:-1] for error in downpour) + " %",
            max(downpour[:2]) < min(downpour[2:]),
        ),
        Finding(
            f"highest of the rates at which Downpour trains, {periods}",
            "highly unstable for 16 and 64 (section 5)",
            ", ".join(f"{rate:g}" if rate else "none" for rate in stable["downpour"]),
            max(stable["downpour"][2:]) < min(stable["downpour"][:2]),
        ),
        Finding(
            f"highest of the rates at which EASGD trains, {periods}",
            "very stable under communication constraints (section 6)",
            ", ".join(f"{rate:g}" if rate else "none" for rate in stable["easgd"]),
            min(stable["easgd"]) >= max(stable["downpour"]),
        ),
        Finding(
            f"EASGD's best test error, {periods}",
            "tends to fall with larger tau (section 5)",
            errors(f"{error:.1%}"[:-1] for error in easgd) + " %",
            easgd[-1] < easgd[0] - NOISE,
        ),
    ]


def draw(figure: Any, runs: dict[str, Any]) -> None:
    """Draw the error over the rate, for each method and period."""
    for axes, method in zip(figure.subplots(1, 2, sharey=True), METHODS, strict=True):
        for tau in TAUS:
            points = [(rate, error) for rate in RATES if (error := runs.get(name(method, tau, rate))) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), "o-", label=f"tau = {tau}")
        axes.set(title=method, xlabel="learning rate", xscale="log", yscale="log")
        axes.legend()
    figure.axes[0].set_ylabel("test error")
    figure.supxlabel(
        "Paper (CIFAR-10): Downpour best for tau = 1 and 4, highly unstable for 16 and 64; EASGD gains from larger tau",
        fontsize="small",
    )
