"""Muon against AdamW: a small language model in PyTorch, by synchronous SGD and Downpour, each rule at its best rate.

    python benchmarks/muon.py [--steps 300] [--replicas 4] [--seeds 3] [--rates 0.0005 ...] [--ranks]

Trains jobs/torch_transformer.toml on virtual clusters or, with --ranks, on ranks of this machine, at each rate with one
seed, and at the best one with all. The rate of Muon is that of its AdamW too. Prints a table of the test losses, and of
the step at which Muon's mean training loss is that of AdamW at the end; writes it to results/muon.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from math import isfinite
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from harness import parse, require, save, start_python, table
from mpidl import open as opened
from mpidl.config import load, toml
from mpidl.runs.simulate import simulate

JOBS = Path(__file__).parents[1] / "jobs"
RULES = ("adamw", "muon")
ALGORITHMS = ("sync", "downpour")
RATES = [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016]
#: Seconds between two records on ranks, and of virtual time, of which a gradient takes about 1.
REPORT, VIRTUAL_REPORT = 1.0, 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of all replicas together, of 32 samples each")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--ranks", action="store_true", help="train on ranks of this machine")
    options = parse(parser, steps=2, replicas=2, seeds=1, rates=[0.002], algorithms=["downpour"])
    require("torch")
    os.chdir(JOBS.parent)
    rows = [row for algorithm in options.algorithms for row in compared(algorithm, options)]
    print(table(rows))
    print(f"written to {save('muon', rows)}")


def compared(algorithm: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each rule."""
    rows: list[dict[str, Any]] = []
    end = 0.0
    for rule in RULES:
        losses = {rate: run(algorithm, rule, rate, 0, options)["test_loss"] for rate in options.rates}
        best = min(losses, key=losses.__getitem__)
        found = [run(algorithm, rule, best, seed, options) for seed in range(options.seeds)]
        ends = [each["test_loss"] for each in found]
        row = {
            "algorithm": algorithm,
            "rule": rule,
            "rate": best,
            "loss": mean(ends),
            "from": min(ends),
            "to": max(ends),
        }
        steps, curve = mean_curve(found)
        if rule != RULES[0]:
            below = (step for step, loss in zip(steps, curve, strict=True) if loss <= end)
            row["steps to adamw's"] = next(below, None)
        end = curve[-1]
        rows.append(row)
        print(f"{algorithm}, {rule}: {losses}, {row}", file=sys.stderr, flush=True)
    return rows


def run(algorithm: str, rule: str, rate: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return a run's summary, with the samples and the training losses of its records as "curve"."""
    with TemporaryDirectory() as directory:
        keys = {
            "algorithm.name": algorithm, "server.rule": rule, "server.rate": rate, "run.seed": seed,
            "run.report": REPORT if options.ranks else VIRTUAL_REPORT, "run.steps": options.steps,
            "run.dir": directory, "virtual.compute": "jitter:1:0.1",
        }  # fmt: skip
        if rule == "muon":
            keys["server.rate_adamw"] = rate
        values = toml.read(JOBS / "torch_transformer.toml")
        del values["run"]["epochs"]
        job = Path(directory, "job.toml")
        job.write_text(toml.dump(values))
        sets = [f"{key}={value}" for key, value in keys.items()]
        if options.ranks:
            words = ["-m", "mpidl", "train", str(job), "--json", *(f"--set={each}" for each in sets)]
            count = options.replicas + (1 if algorithm == "sync" else 2)
            done = start_python(count, words, stdout=subprocess.PIPE, check=True)
            summary = json.loads(done.stdout.splitlines()[-1])
        else:
            summary = simulate(load(job, sets), options.replicas)
        records = opened(summary["run_dir"]).metrics
        return {**summary, "curve": list(zip(records["samples"], records["train_loss"], strict=True))}


def mean_curve(runs: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of a run's records, and the means of all runs' training losses there.

    The last of several records of a run, whose loss is that of the whole epoch, is left out.
    """
    finite = [[each for each in run["curve"] if isfinite(each[1])] for run in runs]
    curves = [np.array(each[:-1] or each) for each in finite]
    samples = curves[0][:, 0]
    return samples / 32, np.mean([np.interp(samples, *curve.T) for curve in curves], axis=0)


if __name__ == "__main__":
    main()
