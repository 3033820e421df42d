"""n-softsync: the mean staleness is near n, and a rate divided by the staleness trains where a fixed rate diverges.

The paper trains CIFAR-10 with lambda = 30 learners. Here they train 64-128-10 on the digits in batches of 8, by plain
SGD at a rate that is too high for a large staleness.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from contrasts import Case, Finding, digits, simulate
from training import Run, curve

TITLE = "n-softsync, 30 learners (Zhang, Gupta, Lian, Liu 2016)"
LEARNERS, RATE, EPOCHS, CHANCE = 30, 0.2, 30, 0.1
#: Values of n, and whether a fixed rate trains with them.
TRAINS = {1: True, 15: False, 30: False}
RATES = {False: "alpha", True: "alpha / staleness"}


def cases(quick: bool) -> dict[str, Case]:
    """Return a run for each n and kind of rate."""
    chosen = [(15, True)] if quick else [(n, modulate) for n in TRAINS for modulate in RATES]
    return {name(*each): partial(train, *each, epochs=1 if quick else EPOCHS) for each in chosen}


def name(n: int, modulate: bool) -> str:
    """Return the name of a case."""
    return f"n = {n}, {RATES[modulate]}"


def train(n: int, modulate: bool, epochs: int) -> Run:
    """Train with learners whose gradients take about 1 s."""
    job = digits(
        (128,),
        run={"epochs": epochs, "terminate_on_nan": False},
        data={"batch": 8, "portion": 8},
        algorithm={"name": "softsync", "n": n, "modulate": modulate},
        server={"rule": "sgd", "rate": RATE},
        virtual={"compute": "jitter:1:0.1", "latency": 0.001},
    )
    return simulate(job, LEARNERS)


def findings(runs: dict[str, Run]) -> list[Finding]:
    """Compare the mean staleness with (lambda - 1) / c, and what trains with what trains in the paper."""
    found = []
    for n in TRAINS:
        if (run := runs.get(name(n, True))) is None:
            continue
        expected, seen = (LEARNERS - 1) / (LEARNERS // n), run["staleness"]["mean"]
        agrees = abs(seen - expected) < 0.02 * expected + 0.02
        found.append(
            Finding(f"mean staleness, n = {n}", f"about {n}; by the identity {expected:#.3g}", f"{seen:#.3g}", agrees)
        )
        largest = run["staleness"]["max"]
        found.append(Finding(f"largest staleness, n = {n}", f"at most {2 * n}", str(largest), largest <= 2 * n))
    for n, trains in TRAINS.items():
        for modulate, rate in RATES.items():
            if (run := runs.get(name(n, modulate))) is not None:
                seen, expected = run["test_accuracy"], trains or modulate
                verdict = "trains" if expected else "diverges"
                here, agrees = f"accuracy {seen:.3f}", (seen > 5 * CHANCE) == expected
                found.append(Finding(f"rate {rate}, n = {n}", verdict, here, agrees))
    return found


def draw(figure: Any, runs: dict[str, Run]) -> None:
    """Draw the accuracy over epochs, and the staleness beside the line of the identity."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for label, run in runs.items():
        left.plot(*curve(run, "epoch"), "-" if RATES[True] in label else "--", label=label)
    left.set(xlabel="epochs", ylabel="test accuracy", title="dashed: a fixed rate")
    left.legend(fontsize="x-small", ncols=2)
    measured = {n: runs[name(n, True)]["staleness"]["mean"] for n in TRAINS if name(n, True) in runs}
    right.plot([0, LEARNERS], [0, LEARNERS], ":", color="grey", label="n")
    identity = [(LEARNERS - 1) / (LEARNERS // n) for n in measured]
    right.plot(list(measured), identity, "_", markersize=20, color="black", label="(lambda - 1) / c")
    right.plot(list(measured), list(measured.values()), "o", label="measured")
    right.set(xlabel="n", ylabel="mean staleness")
    right.legend(fontsize="small")
