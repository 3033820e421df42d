"""Bare loops of gradients, the limit of any training on the same cores: no server, no exchange and no update.

Each process computes the minibatches that a worker of the job would, by the same model on the same device.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from itertools import chain
from typing import Any

from mpidl.config import load
from mpidl.job.build import build
from mpidl.job.placed import place
from mpidl.job.ready import local_model
from mpidl.parameters import Range


def process(number: int, options: argparse.Namespace, barrier: Any, rates: Any) -> None:
    """Be one of the processes: compute its share of an epoch's gradients, and store their samples/s."""
    placed = place(build(load(options.config)), options.workers)
    job, model, portions = placed.job, local_model(placed).model, placed.schedule.portions
    model.parameters[:] = job.first_values(Range(0, placed.layout.size), placed.layout)
    own = list(chain(*map(portions.minibatches, range(number, portions.per_epoch, options.workers))))
    split = job.dataset.train
    split.load()
    model.loss_and_gradient(split.take(own[0]))
    barrier.wait()
    started = time.perf_counter()
    for minibatch in own:
        model.loss_and_gradient(split.take(minibatch))
    rates[number] = sum(len(each.indices) for each in own) / (time.perf_counter() - started)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", help="the job")
    parser.add_argument("--workers", type=int, default=2, help="processes that compute gradients")
    options = parser.parse_args()
    context = multiprocessing.get_context("fork")
    barrier, rates = context.Barrier(options.workers), context.Array("d", options.workers)
    processes = [context.Process(target=process, args=(k, options, barrier, rates)) for k in range(options.workers)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    if any(each.exitcode for each in processes):
        sys.exit("a process has failed")
    print(json.dumps({"samples_per_second": sum(rates)}))
