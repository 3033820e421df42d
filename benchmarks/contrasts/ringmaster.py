"""Ringmaster ASGD: seconds to a loss with a bound R of the delay, with stops and without, beside other algorithms.

The authors train a language model; here it is a small network on the digits. Their times are kept: worker i of 8 takes
1 + sqrt(i) seconds for a gradient. Each case has the best of three rates of plain SGD. Rennala SGD, which collects the
gradients of one point, is n-softsync here, which takes stale ones too.
"""

from __future__ import annotations

from functools import partial
from math import inf, sqrt
from typing import Any

from contrasts import Case, Finding, digits, simulate
from training import Run

TITLE = "Ringmaster ASGD, 8 workers that take 1 + sqrt(i) s (Maranjyan, Tyurin, Richtarik 2025)"
TAU = [1 + sqrt(number) for number in range(1, 9)]
BOUNDS, RATES, EPOCHS = (1, 2, 4, 8, 16), (0.1, 0.2, 0.4), 12
#: Mean training loss of a record, and seconds from one record to the next.
LOSS, RECORD = 0.25, 20.0
OTHERS = {
    "downpour": {"name": "downpour"},
    "softsync": {"name": "softsync", "modulate": False},
    "rates divided by the delay": {"name": "softsync", "n": 8},
}
#: Whether late gradients are stopped.
KINDS = {True: "stops", False: "drops"}


def name(bound: int, stops: bool) -> str:
    """Return the name of a case."""
    return f"R = {bound}, {KINDS[stops]}"


def cases(quick: bool) -> dict[str, Case]:
    """Return the runs of each algorithm at each rate."""
    algorithms: dict[str, dict[str, Any]] = {
        name(bound, stops): {"name": "ringmaster", "max_delay": bound, "stops": stops}
        for stops in KINDS
        for bound in BOUNDS
    }
    if quick:
        chosen = {name(2, True): algorithms[name(2, True)]}
        return {case: partial(best, algorithm, RATES[:1], 1) for case, algorithm in chosen.items()}
    return {case: partial(best, algorithm, RATES, EPOCHS) for case, algorithm in (algorithms | OTHERS).items()}


def best(algorithm: dict[str, Any], rates: tuple[float, ...], epochs: int) -> Run:
    """Return the run that reaches the loss first."""
    runs = [train(algorithm, rate, epochs) for rate in rates]
    return min(runs, key=seconds_to_loss)


def train(algorithm: dict[str, Any], rate: float, epochs: int) -> Run:
    """Train where nothing but gradients takes time."""
    job = digits(
        (32,),
        run={"epochs": epochs, "report": RECORD},
        data={"batch": 8, "portion": 8},
        algorithm=algorithm,
        server={"rule": "sgd", "rate": rate},
        topology={"servers": 1},
        virtual={
            "compute": 1.0, "latency": 0.0, "service": 0.0, "bandwidth": 1e15,
            "slow": [{"replica": number, "factor": tau} for number, tau in enumerate(TAU)],
        },
    )  # fmt: skip
    return simulate(job, len(TAU))


def seconds_to_loss(run: Run) -> float:
    """Return the seconds of training until a record has the loss; infinity if none has."""
    return next((each["time"] for each in run["records"] if (each["train_loss"] or inf) <= LOSS), inf)


def findings(runs: dict[str, Run]) -> list[Finding]:
    """Compare updates per second with theory, stops with drops, and the best bound with other algorithms."""
    speeds = {1: 1 / TAU[0], 16: sum(1 / tau for tau in TAU)}
    found = []
    for bound, expected in speeds.items():
        if (run := runs.get(name(bound, True))) is not None:
            seen = run["pushes"] / run["seconds"]
            holds = abs(seen / expected - 1) < 0.05
            found.append(Finding(f"updates per second, R = {bound}", f"{expected:.2f}", f"{seen:.2f}", holds))
    if OTHERS.keys() - runs.keys():
        return found
    seconds = {case: seconds_to_loss(run) for case, run in runs.items()}
    for bound in (2, 4):
        stops, drops = (seconds[name(bound, kind)] for kind in KINDS)
        found.append(
            Finding(f"seconds, R = {bound}, stops and drops", "fewer", f"{stops:.0f} and {drops:.0f}", stops < drops)
        )
    least = min(seconds[name(bound, True)] for bound in BOUNDS)
    one, most = (seconds[name(bound, True)] for bound in (1, 16))
    what = "seconds, best R, R = 1 and R = 16"
    found.append(Finding(what, "best between", f"{least:.0f}, {one:.0f} and {most:.0f}", least < min(one, most)))
    for other in OTHERS:
        what, its = f"seconds, best R and {other}", seconds[other]
        found.append(Finding(what, "no more", f"{least:.0f} and {its:.0f}", least <= its))
    return found


def draw(figure: Any, runs: dict[str, Run]) -> None:
    """Draw the seconds to the accuracy over the bound."""
    axes = figure.subplots()
    for stops, kind in KINDS.items():
        points = {bound: seconds_to_loss(runs[name(bound, stops)]) for bound in BOUNDS if name(bound, stops) in runs}
        axes.plot(list(points), list(points.values()), "o-", label=f"Ringmaster, {kind}")
    for number, other in enumerate(OTHERS):
        if (run := runs.get(other)) is not None:
            axes.axhline(seconds_to_loss(run), color=f"C{number + 2}", linestyle="--", label=other)
    axes.set(xlabel="R, the least delay that is too late", ylabel=f"seconds to a loss of {LOSS}", xscale="log", ylim=0)
    axes.set_xticks(BOUNDS, [str(bound) for bound in BOUNDS])
    axes.legend()
