"""What a timeline of every rank costs, and how well it agrees with the figures of the run.

    python benchmarks/tracing.py [--pairs 5] [--epochs 5]

Downpour trains 784-1024-1024-10 on Fashion-MNIST on 4 ranks, without a timeline and with one in turn: A B A B. Prints a
table of samples/s of each pair, and one of the seconds of an average worker by activity, from the spans of the last run
and from its summary: by the clock of the figures and, where ranks have cores of their own, by the spans' lengths, too.
Writes both to results/tracing.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness import parse, save, table
from mpidl.tracing import RankSpans, read
from training import Job, Run, add_data, fashion, train, with_sections

RANKS = 4
#: The shares of a summary, and the kinds of spans that they are made of.
SHARES = {"computing": ("gradient", "step", "save"), "pushing": ("push",), "fetching": ("fetch",), "waiting": ("wait",)}


def main() -> None:
    """Run all pairs, print the tables and save them."""
    parser = argparse.ArgumentParser(description="Samples/s with and without a timeline of every rank.")
    add_data(parser)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    options = parse(parser, pairs=1, epochs=1)
    job = fashion(options.data, run={"epochs": options.epochs}, server={"rule": "adagrad", "rate": 0.005})
    rows, spans = [], []
    for number in range(options.pairs):
        without, _ = measure(job)
        traced, spans = measure(with_sections(job, run={"trace": True}))
        off, on = without["samples_per_second"], traced["samples_per_second"]
        rows.append({"pair": str(number + 1), "off": off, "on": on, "slower by (%)": 100 * (1 - on / off)})
        print(f"pair {number + 1}: {off:.0f} and {on:.0f} samples/s", file=sys.stderr, flush=True)
    middle = {name: median(row[name] for row in rows) for name in ("off", "on", "slower by (%)")}
    rows.append({"pair": "median"} | middle)
    print(table(rows))
    compared = activities(traced, spans)
    print(table(compared))
    print(save("tracing", [*rows, *compared]))


def measure(job: Job) -> tuple[Run, list[RankSpans]]:
    """Train once; return the summary, and the timelines if there are any."""
    with tempfile.TemporaryDirectory() as directory:
        run = train(job, RANKS, keep=Path(directory))
        return run, read(Path(run["run_dir"])) if job["run"].get("trace") else []


def activities(run: Run, found: list[RankSpans]) -> list[dict[str, Any]]:
    """Return the seconds of an average worker by activity, of spans and of the summary."""
    workers, rows = [each for each in found if each.role.startswith("worker")], []
    for share, kinds in SHARES.items():
        own = [each.spans[[each.kinds[kind] in kinds for kind in each.spans["kind"]]] for each in workers]
        expected = run["shares"][share] * run["seconds"]
        spent = sum(each["spent"].sum() for each in own) / len(workers)
        rows.append({
            "activity": share, "spans": sum(map(len, own)),
            "seconds, summary": expected, "seconds, spans": float(spent),
            "length of spans": float(sum((each["end"] - each["start"]).sum() for each in own) / len(workers)),
            "off by (% of the run)": 100 * float(spent - expected) / run["seconds"],
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
