"""What a rank compiles, or loads from caches, before the clock starts: it does once, on spare memory, what it will do.

Nothing of the run changes: neither parameters nor what a replica keeps, nor the order of the data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import FinishReduction, Gradient, NextBatch, Reduce, Request, Speed, StartReduction
from mpidl.errors import MpidlError, UsageError
from mpidl.job.job import Job
from mpidl.nn.evaluation import BATCH
from mpidl.parameters import Range
from mpidl.rules import Sgd
from mpidl.rules.segments import Segment
from mpidl.shards.on_device import rehearse
from mpidl.shards.scheduled_rule import ScheduledRule

#: Steps of the rehearsal of an algorithm: its second step may do what its first doesn't.
STEPS = 3


def rehearse_shard(job: Job, xp: Any = np) -> None:
    """Compile what a shard and those who push to it need; `xp` is where the shard lies, NumPy or CuPy."""
    rehearse_encodings(job)
    if xp is np:
        # Policies and a coordinator's operations add vectors by plain SGD.
        sparse = job.algorithm.exchange is Exchange.SHARED_MEMORY
        for rule in {Sgd(), job.rule or Sgd()}:
            for segments in _ways(job):
                rule.warm(job.dtype, sparse, decay=1.0 if segments else 0.0)
    elif not job.algorithm.coordinated:  # `Vectors.rehearse` compiles a coordinator's operations.
        for segments in _ways(job):
            scheduled = ScheduledRule(job.rule, segments=segments)
            rehearse(xp, scheduled, job.algorithm.shard_policy(1), job.dtype)


def rehearse_encodings(job: Job) -> None:
    """Compile the wire formats of pushes and fetches."""
    for encoding in (job.algorithm.encoding(), job.algorithm.fetch_encoding()):
        if encoding is not None:
            encoding.warm(job.dtype)


def rehearse_replica(job: Job) -> None:
    """Compile what a replica of the job needs beside that: its layers, its loss, its algorithm's own steps.

    A user's own model has computed its first batch already; see `mpidl.job.job.Job.rehearse`.
    """
    for segments in _ways(job):
        _rehearse_algorithm(job, segments)
    if not job.original.own:
        first_gradient(job)
        test = job.dataset.test
        job.model.evaluate(test.gather(np.arange(min(BATCH, test.samples))))


def first_gradient(job: Job) -> None:
    """Let this rank's model compute the gradient of the first minibatch."""
    if job.original.own:
        job.rehearse()
    else:
        job.model.loss_and_gradient(job.dataset.train.take(job.schedule.portions.minibatches(0)[0]))


def _ways(job: Job) -> list[list[Segment]]:
    """Return segments of a vector of one element with which every form of a rule is compiled that the job uses."""
    decays = any(each.weight_decay for each in job.segments)
    return [[], *([[Segment(Range(0, 1), weight_decay=1.0)]] if decays else [])]


def _rehearse_algorithm(job: Job, segments: Sequence[Segment]) -> None:
    """Let a replica of one parameter make a few steps whose gradients are 0."""
    parameters = job.model.parameters[:1].copy()
    replica = job.algorithm.replica(0, parameters, 1, ReplicaState(segments=segments))
    batches, counting = iter(range(STEPS)), deque[bool]()

    def answer(request: Request) -> Any:
        match request:
            case NextBatch():
                return next(batches, None)
            case Gradient():
                return parameters * 0
            case Reduce():
                return int(request.vector is not None)
            case Speed():
                return 1.0
            case StartReduction():
                counting.append(request.weight > 0)
            case FinishReduction():
                return int(counting.popleft())
        return None

    try:
        reply = None
        while True:
            reply = answer(replica.send(reply))
    except StopIteration:
        return


def learn_outputs(job: Job) -> int:
    """Let the model evaluate a sample, if there are metrics, and return its number of outputs, which they need.

    Raises
    ------
    UsageError
        The model doesn't say its outputs, or a metric can't be computed of them.
    """
    if not job.figures.metrics:
        return 0
    batch = job.dataset.test.gather(np.arange(1))
    loss, correct, outputs = job.model.evaluate(batch)
    if job.group is not None and job.group.rank:
        return 0  # The group's first rank has them.
    count = job.figures.outputs(outputs, batch.targets)
    job.know_outputs(count)
    try:
        job.figures.sums(batch.total, loss, correct, outputs, batch.targets)
    except MpidlError as error:
        raise UsageError(str(error)) from error.__cause__
    return count
