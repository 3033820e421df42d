"""The cost of a virtual run of many replicas beside the bare gradients that it computes.

    python benchmarks/virtual.py

Trains 784-128-10 by Downpour with 1000 virtual replicas on synthetic data of Fashion-MNIST's shape, and computes the
gradients of the same batches in a plain loop, in turn. Prints a table of milliseconds per gradient, and writes it to
results/virtual.json. A first run, to allocate the memory, doesn't count.
"""

from __future__ import annotations

import argparse
import gc
import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from statistics import median

from harness import interleave, parse, save, table
from mpidl.algorithms import Downpour
from mpidl.data import Portions, Synthetic
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Times, Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.times import Constant, Exponential
from mpidl.nn import Dense, Network
from mpidl.parameters import Range
from mpidl.rules import Adagrad
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import CHUNK_BYTES, Shard

SAMPLES, BATCH = 60000, 128
TIMES = Times(compute=Exponential(0.5), latency=Constant(1e-4), bandwidth=1e9, service=Constant(1e-4))


def main() -> None:
    """Time both in turn, print the table and save it."""
    parser = argparse.ArgumentParser(description="The cost of a virtual run beside its bare gradients.")
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10000, help="gradients of a run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parse(parser, replicas=20, steps=100, rounds=1)

    training = make(options.steps)
    cases = {"bare gradients": lambda: bare(training), "virtual run": lambda: virtual(training, options.replicas)}
    interleave(cases, 1)
    seconds = interleave(cases, options.rounds)
    limit = median(seconds["bare gradients"])
    rows = [
        {
            "case": name,
            "replicas": options.replicas if name == "virtual run" else None,
            "ms a gradient": median(times) / options.steps * 1e3,
            "of bare": median(times) / limit,
        }
        for name, times in seconds.items()
    ]
    print(table(rows))
    print(save("virtual", rows))


def make(steps: int) -> Training:
    """Return the network, its data in memory, and its algorithm."""
    split = Synthetic(shape=(784,), samples=SAMPLES).open().train
    split.load()
    network = Network([Dense(128, "relu"), Dense(10)], (784,))
    return Training(Downpour(), network, split, Schedule(Portions(SAMPLES, BATCH, BATCH, seed=0), steps=steps))


def bare(training: Training) -> None:
    """Compute the gradients of the run's batches, one after the other."""
    for number in range(training.schedule.steps):
        (indices,) = training.schedule.portions.batches(number)
        training.model.loss_and_gradient(training.split.gather(indices))


def virtual(training: Training, replicas: int) -> None:
    """Run the virtual cluster."""
    # The last engine's vectors are in cycles of references.
    gc.collect()
    parameters = training.model.parameters.copy()
    shard = Shard(
        Range(0, parameters.size), parameters, ScheduledRule(Adagrad(0.01)),
        training.algorithm.shard_policy(replicas), CHUNK_BYTES // parameters.itemsize,
    )  # fmt: skip
    engine = VirtualEngine(training, [shard], replicas, time=VirtualTime(TIMES))
    totals = engine.run()
    assert totals.batches == training.schedule.steps


if __name__ == "__main__":
    main()
