"""Stale synchronous parallel: no worker is more than s clocks ahead, and waiting falls with s.

32 workers whose gradients take exponential times. The bound is watched with parameters that count each worker's
updates, so that every read shows which ones it has; convergence is that of 64-64-10 on the digits, plain SGD, at the
better of two rates. The paper has matrix factorisation, topic models and Lasso.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from contrasts import Case, Finding, digits, seconds_to, simulate
from mpidl.algorithms import Downpour, Ssp
from mpidl.algorithms.requests import Clock, Fetch
from mpidl.engines.virtual import Times
from mpidl.engines.virtual.times import Exponential
from mpidl.rules import Sgd
from without_data import Objective, engine, with_own_gradients

TITLE = "Stale synchronous parallel, 32 workers (Ho et al. 2013)"
WORKERS, STEPS = 32, 3200
#: Values of s; None is without a bound, by Downpour.
BOUNDS = (0, 1, 3, 10, 30, None)
RATES, EPOCHS, ACCURACY = (0.03, 0.1), 40, 0.95


def cases(quick: bool) -> dict[str, Case]:
    """Return for each bound a run that is watched, and one that trains the digits."""
    if quick:
        return {watched(1): partial(watch, 1, steps=200)}
    watches = {watched(bound): partial(watch, bound, STEPS) for bound in BOUNDS}
    return watches | {trained(bound): partial(seconds, bound) for bound in BOUNDS}


def watched(bound: int | None) -> str:
    """Return the name of a run that is watched."""
    return f"clocks, s = {bound}"


def trained(bound: int | None) -> str:
    """Return the name of a run that trains."""
    return f"digits, s = {bound}"


def watch(bound: int | None, steps: int) -> dict[str, float]:
    """Return the largest lead, the oldest read, both in clocks, and the share of time spent on gradients."""
    lead, age, working = [0], [0], []

    def look(replica: Any, request: Any, start: float, end: float) -> None:
        others = [each for each in cluster.replicas if each.active]
        if len(others) < WORKERS:
            return
        if isinstance(request, Clock):
            lead.append(replica.clock - min(each.clock for each in others))
        elif isinstance(request, Fetch) and bound is not None:
            age.append(replica.clock - int(replica.parameters.min()))
        working[:] = [sum(each.seconds for each in others) / (WORKERS * end) if end else 1.0]

    # Each worker's updates add 1 to an element of its own.
    counted = with_own_gradients(Ssp, lambda number, x: -np.eye(WORKERS)[number])
    algorithm = Downpour() if bound is None else counted(bound)
    model = Objective(np.zeros(WORKERS), lambda x: np.zeros(WORKERS))
    times = Times(Exponential(1.0), latency=Exponential(0.01))
    cluster = engine(algorithm, model, WORKERS, steps, times, Sgd(1.0), 0, on_request=look)
    cluster.run()
    return {"lead": max(lead), "age": max(age), "working": working[0]}


def seconds(bound: int | None) -> float | None:
    """Return the virtual seconds to the accuracy on the digits, at the best rate; None if it isn't reached."""
    algorithm = {"name": "downpour"} if bound is None else {"name": "ssp", "bound": bound}
    times = []
    for rate in RATES:
        job = digits(
            run={"epochs": EPOCHS},
            data={"batch": 32, "portion": 32},
            algorithm=algorithm,
            server={"rule": "sgd", "rate": rate},
            virtual={"compute": "exponential:1", "latency": "0.01"},
        )
        times.append(seconds_to(simulate(job, WORKERS), ACCURACY))
    return min((each for each in times if each is not None), default=None)


def findings(runs: dict[str, Any]) -> list[Finding]:
    """Return leads and ages, the share of time at work, and which bound trains in the shortest time."""
    bounds = [bound for bound in BOUNDS if watched(bound) in runs]
    limits = [bound for bound in bounds if bound is not None]
    seen = {bound: runs[watched(bound)] for bound in bounds}
    found = []
    for what, key in (("lead of the fastest worker", "lead"), ("age of the oldest read", "age")):
        values, holds = [seen[bound][key] for bound in limits], all(seen[bound][key] <= bound for bound in limits)
        found.append(
            Finding(f"largest {what}, s = {listed(limits)}", f"at most s: {listed(limits)}", listed(values), holds)
        )
    if len(bounds) < len(BOUNDS):
        return found
    working = [seen[bound]["working"] for bound in bounds]
    times = {bound: runs[trained(bound)] or float("inf") for bound in bounds}
    bulk, free, best = times[0], times[None], min(times[bound] for bound in limits if bound)
    return [
        *found,
        Finding(
            f"share of time at work, s = {listed(limits)}, unbounded",
            "significantly more than bulk-synchronous (abstract)",
            ", ".join(f"{share:.2f}" for share in working),
            working[limits.index(3)] > 1.5 * working[0] and working == sorted(working),
        ),
        Finding(
            f"seconds to an accuracy of {ACCURACY}, bulk-synchronous and best s",
            "faster than bulk-synchronous (abstract)",
            f"{bulk:.0f} and {best:.0f}",
            best < bulk,
        ),
        Finding(
            f"seconds to an accuracy of {ACCURACY}, without a bound and best s",
            "faster than asynchronous (abstract)",
            f"{free:.0f} and {best:.0f}",
            best < 0.9 * free,
        ),
    ]


def listed(values: list[int]) -> str:
    """Return numbers separated by commas."""
    return ", ".join(map(str, values))


def draw(figure: Any, runs: dict[str, Any]) -> None:
    """Draw the largest lead, the share of time at work, and the time to the accuracy, over the bound."""
    bounds = [bound for bound in BOUNDS if watched(bound) in runs]
    labels = ["none" if bound is None else str(bound) for bound in bounds]
    left, middle, right = figure.subplots(1, 3)
    limits = [bound for bound in bounds if bound is not None]
    left.plot(limits, limits, "-", color="grey", label="paper: at most s")
    left.plot(limits, [runs[watched(bound)]["lead"] for bound in limits], "o", label="lead")
    left.plot(limits, [runs[watched(bound)]["age"] for bound in limits], "x", label="age of a read")
    left.set(xlabel="s", ylabel="largest, in clocks")
    left.legend(fontsize="small")
    middle.bar(labels, [runs[watched(bound)]["working"] for bound in bounds])
    middle.set(xlabel="s", ylabel="share of time at work")
    right.bar(labels, [runs.get(trained(bound)) or 0.0 for bound in bounds])
    right.set(xlabel="s", ylabel=f"seconds to an accuracy of {ACCURACY}")
