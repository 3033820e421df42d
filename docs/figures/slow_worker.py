"""Draw slow_worker.png: test accuracy over the seconds of training, with and without a slow worker.

    pip install matplotlib
    python docs/figures/slow_worker.py --data DIRECTORY

Trains Fashion-MNIST from DIRECTORY five times by slow_worker.toml, about six minutes in all. Runs that are already in
runs/slow_worker are only drawn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

HERE = Path(__file__).parent
RUNS = Path("runs/slow_worker")
SLOW = "debug.slow_worker=2"
#: Ranks and settings of each run.
CASES: dict[str, tuple[int, list[str]]] = {
    "downpour": (5, []),
    "downpour-slow": (5, [SLOW]),
    "synchronous": (4, ["algorithm.name=sync"]),
    "synchronous-slow": (4, ["algorithm.name=sync", SLOW, "run.epochs=3"]),
    "alone": (3, []),
}
BLUE, RED, GREY = "#0b6e8f", "#c8501e", "#777777"
#: Label, colour and style of each run's curve.
CURVES = {
    "downpour": ("Downpour, 3 equal workers", BLUE, "o--"),
    "downpour-slow": ("Downpour, 1 of 3 workers 10 times slower", BLUE, "o-"),
    "synchronous": ("synchronous, 3 equal workers", RED, "s--"),
    "synchronous-slow": ("synchronous, 1 of 3 workers 10 times slower", RED, "s-"),
    "alone": ("1 worker", GREY, ".:"),
}


def train(case: str, data: Path) -> None:
    """Train one of the cases, unless there is such a run."""
    if (RUNS / case / "summary.json").exists():
        return
    ranks, settings = CASES[case]
    settings = [*settings, f"data.path={data}", f"run.dir={RUNS}", f"run.name={case}"]
    words = [word for setting in settings for word in ("--set", setting)]
    subprocess.run(["mpidl", "train", str(HERE / "slow_worker.toml"), "-n", str(ranks), *words], check=True)


def curve(run: Path) -> tuple[list[float], list[float]]:
    """Return seconds of training and test accuracy in percent, at the end of each epoch."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ends = [record for record in records if record["epoch"] % 1 == 0]
    return [record["time"] for record in ends], [100 * record["test_accuracy"] for record in ends]


def main() -> None:
    """Train the missing runs, and draw."""
    parser = argparse.ArgumentParser(description="Draw docs/figures/slow_worker.png.")
    parser.add_argument("--data", type=Path, required=True, help="directory of the four Fashion-MNIST .gz files")
    options = parser.parse_args()

    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    for case, (label, colour, style) in CURVES.items():
        train(case, options.data)
        axes.plot(*curve(RUNS / case), style, color=colour, markersize=4, label=label)
    axes.legend(loc="lower right")
    axes.set(xlabel="seconds of training", ylabel="test accuracy (%)", xlim=(0, 106))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "slow_worker.png", dpi=150)


if __name__ == "__main__":
    main()
