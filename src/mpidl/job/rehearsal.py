"""What a rank compiles, or loads from caches, before the clock starts: it does once, on spare memory, what it will do.

Nothing of the run changes: neither parameters nor what a replica keeps, nor the order of the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Gradient, NextBatch, Reduce, Request
from mpidl.job.job import Job
from mpidl.nn.evaluation import BATCH
from mpidl.rules import Sgd
from mpidl.shards.on_device import rehearse

#: Steps of the rehearsal of an algorithm: its second step may do what its first doesn't.
STEPS = 3


def rehearse_shard(job: Job, xp: Any = np) -> None:
    """Compile what a shard and those who push to it need; `xp` is where the shard lies, NumPy or CuPy."""
    encoding = job.algorithm.encoding()
    if encoding is not None:
        encoding.warm(job.dtype)
    if xp is np:
        # Policies and a coordinator's operations add vectors by plain SGD.
        for rule in {Sgd(), job.rule or Sgd()}:
            rule.warm(job.dtype, sparse=job.algorithm.exchange is Exchange.SHARED_MEMORY)
    elif not job.algorithm.coordinated:  # `Vectors.rehearse` compiles a coordinator's operations.
        rehearse(xp, job.rule, job.algorithm.shard_policy(1), job.dtype)


def rehearse_replica(job: Job) -> None:
    """Compile what a replica of the job needs beside that: its layers, its loss, its algorithm's own steps.

    A model of a user's own is left alone: who knows what else its methods do.
    """
    _rehearse_algorithm(job)
    if job.original.movable:
        train, test = job.dataset.train, job.dataset.test
        job.model.loss_and_gradient(train.take(job.schedule.portions.minibatches(0)[0]))
        job.model.evaluate(test.gather(np.arange(min(BATCH, test.samples))))


def _rehearse_algorithm(job: Job) -> None:
    """Let a replica of one parameter make a few steps whose gradients are 0."""
    parameters = job.model.parameters[:1].copy()
    replica = job.algorithm.replica(0, parameters, 1, ReplicaState())
    batches = iter(range(STEPS))

    def answer(request: Request) -> Any:
        match request:
            case NextBatch():
                return next(batches, None)
            case Gradient():
                return parameters * 0
            case Reduce():
                return int(request.vector is not None)
        return None

    try:
        reply = None
        while True:
            reply = answer(replica.send(reply))
    except StopIteration:
        return
