"""Strong and weak scaling over workers, servers, partitions and hosts, beside PyTorch's DDP and a prediction.

    pip install -r benchmarks/requirements.txt
    python benchmarks/scaling.py --workers 1 2 4 8
    sbatch jobs/scaling.sbatch                          the same as a job array, one point a task

Trains 784-1024-1024-10 by Downpour on Fashion-MNIST, and DDP with a process per worker. In weak scaling each worker has
minibatches of --batch samples; in strong scaling the minibatches of all workers together have --batch samples.
Efficiency is relative to a single worker, or process. On several hosts --start starts the ranks, such as

    --start 'srun --mpi=pmix --nodes={hosts} --ntasks={ranks}'    or    --start 'mpirun --hostfile FILE -n {ranks}'

The prediction, up to 1000 workers, is that of a virtual cluster with the durations of a single worker, measured with
the same numbers of hosts and servers if they are among the points. In strong scaling, gradients are those of a single
worker with minibatches of the same size. A worker on the host of all its servers computes as fast as the single worker
on one host, since none of its messages pass a network. The overhead of a step, and the bandwidth of the network, are
fitted to the single workers on one host and on the most hosts.
Without --data it trains a small network on the embedded digits, without DDP. Prints a table, and writes it to
results/scaling.json, scaling.h5 and scaling.png.

--point K only measures the K-th point, and keeps it in --points DIRECTORY; --gather makes the table of what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

from harness import RESULTS, parse, pyplot, require, save, save_hdf5, table
from scaling_points import DDP_STRONG, DDP_WEAK, STRONG, WEAK, Point, job, point_of, speed_of
from scaling_prediction import FOR_A_SERVER, Fit, beyond, fitted, predicted
from training import last_json, train

PEER = Path(__file__).parent / "peers" / "ddp.py"


def main() -> None:
    """Measure all points or one, or make the table."""
    options = arguments()
    every = list(points(options))
    if options.count:
        print(len(every))
        return
    if options.point is not None and not 0 <= options.point < len(every):
        sys.exit(f"--point: expected 0 to {len(every) - 1}, found {options.point}")
    if options.data and not options.gather:
        require("torch")
    if options.point is None:
        require("matplotlib")
    with tempfile.TemporaryDirectory() as own:
        directory = options.points or Path(own)
        directory.mkdir(parents=True, exist_ok=True)
        if not options.gather:
            measure(every if options.point is None else [every[options.point]], options, directory)
        if options.point is None:
            show([json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))], options)


def arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description="Strong and weak scaling.")
    parser.add_argument("--data", type=Path, help="directory of the four Fashion-MNIST .gz files")
    for name in ("workers", "servers", "partitions", "hosts"):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=[1, 2] if name == "workers" else [1])
    parser.add_argument("--start", type=shlex.split, help="command that starts {ranks} ranks on {hosts} hosts")
    parser.add_argument("--batch", type=int, default=128, help="samples in a minibatch")
    parser.add_argument("--steps", type=int, default=230, help="gradients of a worker in a run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each point")
    parser.add_argument("--points", type=Path, help="directory for the measurements of the points")
    parser.add_argument("--point", type=int, metavar="K", help="measure this point only, from 0")
    parser.add_argument("--count", action="store_true", help="print the number of points")
    parser.add_argument("--gather", action="store_true", help="make the table of the points in --points")
    # Workers that meet on a link may keep their order for hundreds of steps.
    parser.add_argument("--seeds", type=int, default=8, help="predictions whose mean counts")
    parser.add_argument("--beyond", type=int, nargs="*", default=[4, 10, 30, 100, 300, 1000], help="workers predicted")
    options = parse(parser, workers=[1], steps=20, rounds=1, seeds=1, beyond=[10])
    if (options.gather or options.point is not None) and options.points is None:
        parser.error("--points: missing, expected a directory")
    if options.start is None and max(options.hosts) > 1:
        parser.error("--start: missing, expected the command that starts ranks on several hosts")
    return options


def points(options: argparse.Namespace) -> Iterator[Point]:
    """Yield the points, first those of one worker, with which all others are compared."""
    kinds = [WEAK, STRONG] + [DDP_WEAK, DDP_STRONG] * (options.data is not None)
    found: dict[Point, None] = {}
    axes = (kinds, options.hosts, options.servers, options.partitions, options.workers)
    for point in sorted((Point(*each) for each in product(*axes)), key=lambda point: (point.workers, point.ranks)):
        same = Point(point.scaling, point.hosts, 0, 1, point.workers) if point.ddp else point
        # One worker has the whole minibatch either way.
        one = {STRONG: WEAK, DDP_STRONG: DDP_WEAK}.get(same.scaling, same.scaling)
        if same.hosts <= same.ranks:
            found[replace(same, scaling=one) if same.workers == 1 else same] = None
    yield from found


# Measuring.


def measure(chosen: list[Point], options: argparse.Namespace, directory: Path) -> None:
    """Run the points in turn, round after round, and write the measurements of each into a file of its own."""
    runs: dict[Point, list[dict[str, Any]]] = {point: [] for point in chosen}
    alone: dict[Point, list[dict[str, Any]]] = {point: [] for point in chosen if point.scaling == STRONG}
    for _ in range(options.rounds):
        for point, found in runs.items():
            found.append(run_ddp(point, options, directory) if point.ddp else run(point, options, directory))
            print(f"{point}: {found[-1]['samples_per_second']:.0f} samples/s", file=sys.stderr, flush=True)
            if point in alone:
                weak = replace(point, scaling=WEAK, workers=1)
                alone[point].append(run(weak, options, directory, point.batch(options.batch)))
    for point, found in runs.items():
        name = "-".join(str(each).replace(", ", "-") for each in asdict(point).values())
        record = asdict(point) | {"cores": len(os.sched_getaffinity(0)), "runs": found, "alone": alone.get(point)}
        (directory / f"{name}.json").write_text(json.dumps(record) + "\n")


def start(point: Point, options: argparse.Namespace) -> list[str] | None:
    """Return the command that starts a point's ranks."""
    return options.start and [word.format(hosts=point.hosts, ranks=point.ranks) for word in options.start]


def run(point: Point, options: argparse.Namespace, directory: Path, batch: int | None = None) -> dict[str, Any]:
    """Train on the point's ranks; return speed, shares of time and durations."""
    with tempfile.TemporaryDirectory(dir=directory) as own:
        summary = train(job(point, options, batch), point.ranks, Path(own), start(point, options))
    return {key: summary[key] for key in ("samples_per_second", "shares", "timing")}


def run_ddp(point: Point, options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Train by PyTorch's DistributedDataParallel for an epoch; return its speed."""
    with tempfile.TemporaryDirectory(dir=directory) as own:
        words: list[Any] = [sys.executable, PEER, "--json", "--epochs", 1, "--data", options.data.resolve()]
        words += ["--batch", point.batch(options.batch), "--workers", point.workers]
        words += ["--rendezvous", Path(own).resolve() / "rendezvous"]
        summary = last_json([*(start(point, options) or []), *words])
    return {"samples_per_second": summary["samples_per_second"]}


# Showing.


def show(records: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the table, and write it in all forms."""
    singles = [each for each in records if each["workers"] == each["partitions"] == 1]
    singles.sort(key=lambda each: (each["hosts"], each["servers"]))
    if not singles:
        sys.exit("no point with a single worker, with which the others are compared")
    peers, singles = [[each for each in singles if point_of(each).ddp == ddp] for ddp in (True, False)]
    fit = fitted(singles, options) if singles else Fit(0.0, 0.0)
    rows = [
        row(record, own[0], singles, options, fit)
        for record in records
        if (own := peers if point_of(record).ddp else singles)
    ]
    rows.sort(key=lambda each: [each[key] for key in ("scaling", "hosts", "servers", "partitions", "workers")])
    more = []
    if singles:
        more = list(beyond(singles, max(each["workers"] for each in rows), options, fit))
    print(table(rows))
    print("\nPredicted, nothing measured:")
    print(table(more))
    print(save("scaling", rows + more))
    print(save_hdf5("scaling", {"measured": rows, "predicted": more}))
    print(plot(rows, more))


def row(
    record: dict[str, Any],
    base: dict[str, Any],
    singles: list[dict[str, Any]],
    options: argparse.Namespace,
    fit: Fit,
) -> dict[str, Any]:
    """Return a line of the table, with the efficiency against `base`."""
    point, speeds = point_of(record), [run["samples_per_second"] for run in record["runs"]]
    speed, ranks = median(speeds), point.workers * point.partitions
    line = asdict(point) | {
        "samples/s": speed, "least": min(speeds), "most": max(speeds), "efficiency": speed / ranks / speed_of(base),
    }  # fmt: skip
    if not point.ddp:
        line["computing"] = median(run["shares"].get("computing", float("nan")) for run in record["runs"])
        cores = record["cores"] if point.hosts == 1 else None
        line["predicted"] = mean(
            predicted(point, singles, options, fit, cores, record["alone"], seed) for seed in range(options.seeds)
        )
        line["error"] = line["predicted"] / speed - 1
    return line


def label_of(point: Point, rows: list[dict[str, Any]]) -> str:
    """Return the label of a point's series: its scaling, and its other numbers if the rows have several of them."""
    words = [point.scaling]
    for name in ("hosts",) if point.ddp else ("hosts", "servers", "partitions"):
        if len({each[name] for each in rows if point_of(each).ddp == point.ddp}) > 1:
            count = getattr(point, name)
            words.append(f"{count} {name.removesuffix('s') if count == 1 else name}")
    return ", ".join(words)


def plot(rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> Path:
    """Draw samples/s and efficiency over workers, predictions dashed and labelled."""
    figure, (speeds, efficiencies) = pyplot().subplots(1, 2, figsize=(13, 8), layout="constrained")
    colours = pyplot().get_cmap("tab20").colors
    for axes in (speeds, efficiencies):
        axes.set_prop_cycle(color=colours)
    series: dict[str, list[dict[str, Any]]] = {}
    for each in rows:
        series.setdefault(label_of(point_of(each), rows), []).append(each)
    for label, found in series.items():
        workers = [each["workers"] for each in found]
        (line,) = speeds.plot(workers, [each["samples/s"] for each in found], "o-", label=label)
        efficiencies.plot(workers, [each["efficiency"] for each in found], "o-", color=line.get_color())
        if "predicted" in found[0]:
            said = [each["predicted"] for each in found]
            speeds.plot(workers, said, "x--", color=line.get_color(), label=f"{label}: predicted")
    if more:
        workers = [each["workers"] for each in more]
        label = f"weak, a server for {FOR_A_SERVER} workers: predicted, not measured"
        speeds.plot(workers, [each["predicted"] for each in more], "x:", color="grey", label=label)
        efficiencies.plot(workers, [each["predicted efficiency"] for each in more], "x:", color="grey")
    for axes, label in ((speeds, "samples/s"), (efficiencies, "efficiency against one worker")):
        axes.set(xlabel="workers", ylabel=label, xscale="log")
        axes.grid(alpha=0.3)
    speeds.set(yscale="log")
    efficiencies.set(ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=3, fontsize="x-small")
    path = RESULTS / "scaling.png"
    figure.savefig(path, dpi=120)
    pyplot().close(figure)
    return path


if __name__ == "__main__":
    main()
