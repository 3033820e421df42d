"""Synchronous SGD with backup workers: how long a step takes, with workers that finish what is late or are restarted.

Chen et al. measure the durations of their own cluster. Here 8 workers, of which b are backup, have exponential ones
with a mean of 1 s. If all of them begin at every step, it ends at the (8 - b)-th of 8, the mean of which is
1/8 + 1/7 + ... + 1/(b + 1) (Dutta et al. 2018).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from contrasts import Case, Finding, digits, simulate
from training import Run

TITLE = "Backup workers, 8 workers in all (Chen et al. 2016, Dutta et al. 2018)"
WORKERS, BACKUPS, EPOCHS = 8, (0, 1, 2), 30
#: What a worker does whose gradient is late.
KINDS = {False: "finishes", True: "restarted"}


def cases(quick: bool) -> dict[str, Case]:
    """Return a run for each number of backup workers and kind."""
    chosen = [(1, True)] if quick else [(backup, restart) for restart in KINDS for backup in BACKUPS]
    return {name(*each): partial(train, *each, epochs=1 if quick else EPOCHS) for each in chosen}


def name(backup: int, restart: bool) -> str:
    """Return the name of a case."""
    return f"b = {backup}, {KINDS[restart]}"


def train(backup: int, restart: bool, epochs: int) -> Run:
    """Train softmax regression, where nothing but gradients takes time."""
    job = digits(
        (),
        run={"epochs": epochs},
        data={"batch": 8, "portion": 8},
        algorithm={"name": "backup_sync", "backup": backup, "restart": restart},
        topology={"servers": 1},
        virtual={"compute": "exponential:1", "latency": 0.0, "service": 0.0, "bandwidth": 1e15},
    )
    return simulate(job, WORKERS)


def step(run: Run, backup: int) -> float:
    """Return the seconds of a step."""
    return run["seconds"] * (WORKERS - backup) / (run["pushes"] - run["dropped"])


def order_statistic(backup: int) -> float:
    """Return the mean of the (8 - b)-th of 8 durations."""
    return sum(1 / k for k in range(backup + 1, WORKERS + 1))


def findings(runs: dict[str, Run]) -> list[Finding]:
    """Compare the seconds of a step with the order statistic, which workers that finish what is late miss."""
    found = []
    for restart in KINDS:
        for backup in BACKUPS:
            if (run := runs.get(name(backup, restart))) is not None:
                expected, seen = order_statistic(backup), step(run, backup)
                equal, longer = abs(seen / expected - 1) < 0.05, restart or not backup
                paper = f"{expected:.2f} s" if longer else f"more than {expected:.2f} s"
                found.append(Finding(f"a step, {name(backup, restart)}", paper, f"{seen:.2f} s", equal == longer))
    return found


def draw(figure: Any, runs: dict[str, Run]) -> None:
    """Draw the seconds of a step over the number of backup workers."""
    axes = figure.subplots()
    axes.plot(BACKUPS, [order_statistic(each) for each in BACKUPS], "_", markersize=40, color="black", label="theory")
    for restart, kind in KINDS.items():
        points = {each: step(runs[name(each, restart)], each) for each in BACKUPS if name(each, restart) in runs}
        axes.plot(list(points), list(points.values()), "o-", label=f"a late worker {'is ' * restart}{kind}")
    axes.set(xlabel="backup workers of 8", ylabel="seconds of a step", ylim=0, xticks=BACKUPS)
    axes.legend()
