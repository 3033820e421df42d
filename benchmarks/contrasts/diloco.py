"""DiLoCo by the number of local steps H, beside one worker and synchronous training.

Eight workers make the same number of AdamW steps each, and exchange every H of them: as many rounds as in the paper at
its longest windows, and the same ratio of 20 between windows that cost little. The paper trains a transformer of 150
million parameters on C4; here it is 64-64-10 on noisy synthetic data, and perplexities are those of ten classes.
"""

from __future__ import annotations

from functools import partial
from math import exp
from typing import Any

from contrasts import Case, Finding, simulate

TITLE = "DiLoCo by local steps H, 8 workers (Douillard et al. 2023)"
WORKERS, STEPS, RATE = 8, 1280, 0.001
WINDOWS = (2, 4, 10, 20, 40)
#: How the data are dealt out, and the window at which both ways are compared.
UNEVEN, MIDDLE = "dirichlet:1", 10
EVENLY = f"H = {MIDDLE}, the same data for all"
ONE, SYNC, MANY = "one worker", "8 times the batch", "8 times the updates"
#: The paper's perplexities (table 2), and that of DiLoCo with H = 500 and the same data for all (table 3).
PAPER = {ONE: 16.23, SYNC: 15.30, "DiLoCo": 15.08, MANY: 14.72}
#: The perplexity at H = 1000 relative to H = 50 (section 3.1).
PAPER_RISE = 1.029


def cases(quick: bool) -> dict[str, Case]:
    """Return a run for each window, and those that they are compared with."""
    if quick:
        return {windowed(2): partial(perplexity, WORKERS, 4, 2, UNEVEN)}
    return {
        ONE: partial(perplexity, 1, STEPS, None, None),
        SYNC: partial(perplexity, WORKERS, STEPS, None, None),
        MANY: partial(perplexity, 1, WORKERS * STEPS, None, None),
        EVENLY: partial(perplexity, WORKERS, STEPS, MIDDLE, None),
        **{windowed(window): partial(perplexity, WORKERS, STEPS, window, UNEVEN) for window in WINDOWS},
    }


def windowed(window: int) -> str:
    """Return the name of a case."""
    return f"H = {window}"


def perplexity(workers: int, steps: int, window: int | None, split: str | None) -> dict[str, float]:
    """Return the perplexity on the test data, and the MB that a worker sends, after `steps` steps of each worker."""
    sync = {"algorithm": {"name": "sync"}, "server": {"rule": "adamw", "rate": RATE}}
    diloco = {"algorithm": {"name": "diloco", "window": window, "rate": RATE}}
    run = simulate(
        {
            "run": {"steps": workers * steps},
            "data": {
                "source": "synthetic", "samples": 300000, "test_samples": 4000, "noise": 4.0,
                "batch": 32, "portion": 32, **({} if split is None else {"split": split}),
            },
            "model": {"layer": [{"type": "dense", "units": 64, "activation": "relu"}, {"type": "dense", "units": 10}]},
            "virtual": {"compute": "1", "latency": 0.01},
            **(sync if window is None else diloco),
        },
        workers,
    )  # fmt: skip
    return {"perplexity": exp(run["test_loss"]), "megabytes": run["bytes_pushed"] / 1e6 / workers}


def findings(runs: dict[str, Any]) -> list[Finding]:
    """Compare the order of perplexities with the paper's, and what a long window costs."""
    if ONE not in runs:
        return []
    seen = {name: run["perplexity"] for name, run in runs.items()}
    sent = {name: run["megabytes"] for name, run in runs.items()}
    longest, shortest = seen[windowed(WINDOWS[-1])], seen[windowed(WINDOWS[0])]
    ratio = WINDOWS[-1] // WINDOWS[0]
    order = {ONE: seen[ONE], SYNC: seen[SYNC], f"DiLoCo, H = {MIDDLE}": seen[EVENLY], MANY: seen[MANY]}
    return [
        Finding(
            f"perplexity of {', '.join(order)}",
            "falls: " + ", ".join(f"{value:.2f}" for value in PAPER.values()),
            ", ".join(f"{value:.2f}" for value in order.values()),
            list(order.values()) == sorted(order.values(), reverse=True),
        ),
        Finding(
            f"perplexity, H = {', '.join(map(str, WINDOWS))}, other data for each worker",
            "rises with H (section 3.1)",
            ", ".join(f"{seen[windowed(window)]:.2f}" for window in WINDOWS),
            longest > shortest,
        ),
        Finding(
            f"perplexity with windows {ratio} times as long, relative",
            f"a mild rise, {PAPER_RISE}",
            f"{longest / shortest:.3f}",
            longest < 1.1 * shortest,
        ),
        Finding(
            f"{SYNC}, and {windowed(WINDOWS[-1])}: perplexity and MB sent by a worker",
            "as good with 500 times less (abstract)",
            f"{seen[SYNC]:.2f} and {sent[SYNC]:.1f}, {longest:.2f} and {sent[windowed(WINDOWS[-1])]:.1f}",
            longest <= seen[SYNC],
        ),
        Finding(
            f"perplexity of H = {MIDDLE}, the same data for all and other data for each",
            "comparable: 15.08 and 15.02 (table 3)",
            f"{seen[EVENLY]:.2f} and {seen[windowed(MIDDLE)]:.2f}",
            seen[windowed(MIDDLE)] < 1.03 * seen[EVENLY],
        ),
    ]


def draw(figure: Any, runs: dict[str, Any]) -> None:
    """Draw the perplexity over what a worker sends, and the paper's perplexities beside those seen."""
    left, right = figure.subplots(1, 2)
    for window in WINDOWS:
        if (run := runs.get(windowed(window))) is not None:
            left.plot(run["megabytes"], run["perplexity"], "o", color="C0")
            left.annotate(
                windowed(window), (run["megabytes"], run["perplexity"]), xytext=(4, 4), textcoords="offset points"
            )
    for name, style in ((ONE, ":"), (SYNC, "--"), (MANY, "-")):
        if name in runs:
            left.axhline(runs[name]["perplexity"], ls=style, color="grey", label=name)
    left.set(xlabel="MB sent by a worker", ylabel="perplexity", xscale="log")
    left.legend(fontsize="small")
    if ONE in runs:
        seen = dict(zip(PAPER, (runs[name]["perplexity"] for name in (ONE, SYNC, EVENLY, MANY)), strict=True))
        for marker, label, values in (("x", "paper, H = 500", PAPER), ("o", f"here, H = {MIDDLE}", seen)):
            right.plot([value / values[ONE] for value in values.values()], marker, label=label)
        right.set_xticks(range(len(PAPER)), [name.replace(" the ", "\nthe ") for name in PAPER], fontsize="small")
        right.set(ylabel="perplexity relative to one worker")
        right.legend(fontsize="small")
