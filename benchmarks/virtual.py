"""What a virtual run of many replicas costs beside the bare gradients that it computes.

    python benchmarks/virtual.py

Trains 784-128-10 by Downpour with 1000 virtual replicas on synthetic data of Fashion-MNIST's shape, and computes
as many gradients of the same batches in a plain loop, in turn. Prints a table of milliseconds a gradient, and writes
it to results/virtual.json. A first, uncounted run lets the machine provide the memory.
"""

from __future__ import annotations

import argparse
import gc
import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from statistics import median

import numpy as np

from harness import interleave, save, table
from mpidl.config import from_dict
from mpidl.engines.virtual import VirtualEngine, VirtualTime
from mpidl.job.build import build
from mpidl.job.fill import fill
from mpidl.job.job import Job
from mpidl.parameters import Range
from mpidl.shards.shard import CHUNK_BYTES


def main() -> None:
    """Time both in turn, print the table and save it."""
    parser = argparse.ArgumentParser(description="The cost of a virtual run beside its bare gradients.")
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10000, help="gradients of a run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    job = make(options.steps)
    cases = {"bare gradients": lambda: bare(job), "virtual run": lambda: virtual(job, options.replicas)}
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


def make(steps: int) -> Job:
    """Return the job: its network, its data in memory, its virtual cluster."""
    hidden = {"type": "dense", "units": 128, "activation": "relu"}
    job = build(
        from_dict(
            {
                "run": {"steps": steps},
                "data": {"source": "synthetic", "shape": [784], "samples": 60000, "batch": 128, "portion": 128},
                "model": {"layer": [hidden, {"type": "dense", "units": 10}]},
                "virtual": {"compute": "exponential:0.5", "latency": 1e-4, "bandwidth": 1e9, "service": 1e-4},
            }
        )
    )
    job.dataset.train.load()
    return job


def bare(job: Job) -> None:
    """Compute the gradients of the run's batches, one after the other."""
    train, portions = job.dataset.train, job.schedule.portions
    for number in range(job.schedule.steps):
        (indices,) = portions.batches(number)
        job.model.loss_and_gradient(train.gather(indices))


def virtual(job: Job, replicas: int) -> None:
    """Run the virtual cluster."""
    # The last engine's vectors are in cycles of references.
    gc.collect()
    job.replicas = replicas
    size = job.layout.size
    shard = fill(job, Range(0, size), np.empty(size, job.dtype), CHUNK_BYTES // job.dtype.itemsize)
    engine = VirtualEngine(job.training, [shard], replicas, time=VirtualTime(job.config.virtual.times(replicas)))
    totals = engine.run()
    assert totals.batches == job.schedule.steps


if __name__ == "__main__":
    main()
