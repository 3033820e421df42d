"""Rehearsals: a rank compiles its work, or loads it from caches, before the clock starts, by doing it on spare memory.

Nothing of the run changes: neither parameters nor a replica's state, nor the order of the data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from mpidl.algorithms import Algorithm, Exchange
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import FinishReduction, Gradient, NextBatch, Reduce, Request, Speed, StartReduction
from mpidl.data import Batch
from mpidl.errors import MpidlError, UsageError
from mpidl.functions import same_random_numbers
from mpidl.job.job import Job
from mpidl.job.placed import PlacedJob
from mpidl.job.ready import LocalModel
from mpidl.metrics.figures import Figures
from mpidl.nn.evaluation import BATCH
from mpidl.nn.model import Evaluation
from mpidl.parameters import Range
from mpidl.rules import Sgd
from mpidl.rules.segments import Segment
from mpidl.shards.on_device import rehearse
from mpidl.shards.scheduled_rule import AVERAGE, ScheduledRule

#: Steps of the rehearsal of an algorithm: later steps may do more than the first.
STEPS = 3


def rehearse_own(job: Job) -> str | None:
    """Let a user's own model compute a batch of each size; raise UsageError if it fails, before training starts.

    Return a line about what shards would not see, if there is anything.
    """
    if not job.original.own:
        return None
    changed = set[str]()
    batch, run, samples = job.config.data.batch, job.config.run, job.portions.samples
    reached = run.steps is None or run.steps * batch >= samples
    for size in sorted({min(batch, samples), samples % batch if reached else 0} - {0}, reverse=True):
        try:
            with _without_trace(job):
                changed.update(job.original.rehearse(_first_batch(job, size)))
        except UsageError as error:
            if size == batch:
                raise
            what = f"the batch is an epoch's remainder of {size}, data.batch is {batch}; data.drop_last leaves it out"
            raise UsageError(f"{error}: {what}") from error.__cause__
    algorithm = job.algorithm
    # Others push what has become of the parameters, or change them in place.
    by_gradients = algorithm.coordinated or (job.config.rule is not None and not algorithm.outer)
    if not changed or not by_gradients or algorithm.exchange is Exchange.SHARED_MEMORY:
        return None
    return (
        f"model: it changes its parameter {min(changed)} itself, which its shards don't see: the next fetch undoes it; "
        "use torch.nn.utils.parametrize to constrain parameters"
    )


@contextmanager
def _without_trace(job: Job) -> Iterator[None]:
    """Restore what a user's code may change: a model itself, and the states of generators of random numbers."""
    with same_random_numbers(), job.original.unchanged():
        yield


def _first_batch(job: Job, size: int | None = None) -> Batch:
    """Return the first batch or, if `size` is given, that many of its samples."""
    first = job.portions.minibatches(0)[0]
    if job.dataset.owners is not None:
        # The samples of one owner: others' needn't be read.
        first = first._replace(indices=np.arange(min(len(first.indices), len(job.dataset.owners))))
    return job.dataset.train.take(first._replace(indices=first.indices[:size]))


def rehearse_shard(placed: PlacedJob, xp: Any = np) -> None:
    """Compile the work of a shard and of pushes to it; `xp` is the shard's device, NumPy or CuPy."""
    job = placed.job
    rehearse_encodings(job)
    if xp is np:
        # Policies and a coordinator's operations add vectors by plain SGD.
        sparse = job.algorithm.exchange is Exchange.SHARED_MEMORY
        for rule in {Sgd(), *(job.config.rule or Sgd()).scalar_rules}:
            for segments in _forms(placed):
                rule.warm(job.dtype, sparse, decay=1.0 if segments else 0.0)
    elif not job.algorithm.coordinated:  # `Vectors.rehearse` compiles a coordinator's operations.
        for segments in _forms(placed):
            scheduled = ScheduledRule(job.config.rule, segments=segments)
            rehearse(xp, scheduled, job.algorithm.shard_policy(1), job.dtype)


def rehearse_encodings(job: Job) -> None:
    """Compile the wire formats of pushes and fetches."""
    for encoding in (job.algorithm.encoding(), job.algorithm.fetch_encoding()):
        if encoding is not None:
            encoding.warm(job.dtype)


def rehearse_replica(placed: PlacedJob, local: LocalModel) -> None:
    """Compile the work of a replica: its layers, its loss, its algorithm's own steps.

    A user's own model has computed its first batch already; see `rehearse_own`.
    """
    job = placed.job
    for segments in _forms(placed):
        deque(requests_of(job.algorithm, local.model.parameters[:1].copy(), range(STEPS), segments=segments), maxlen=0)
    if not job.original.own:
        local.model.loss_and_gradient(_first_batch(job))
        test = job.dataset.test or job.dataset.train
        local.model.evaluate(test.gather(np.arange(min(BATCH, test.samples))))


def _forms(placed: PlacedJob) -> list[list[Segment]]:
    """Return the segments of a vector of one element for each form in which the job compiles a rule."""
    decays = placed.evaluated == AVERAGE or any(each.weight_decay for each in placed.segments)
    one, local = Range(0, 1), placed.job.algorithm.local_rule
    others = () if local is None else local.scalar_rules[1:]
    found = [Segment(one, rule=each) for each in others] + [Segment(one, weight_decay=1.0)] * decays
    return [[], *([each] for each in found)]


def requests_of(
    algorithm: Algorithm,
    parameters: np.ndarray,
    batches: Iterable[int],
    replicas: int = 1,
    segments: Sequence[Segment] = (),
) -> Iterator[Request]:
    """Yield the requests of the first of some replicas, whose gradients are 0, as long as there are batches."""
    replica = algorithm.replica(0, parameters, replicas, ReplicaState(segments=segments))
    numbers, counting = iter(batches), deque[bool]()
    reply: Any = None
    with suppress(StopIteration):
        while True:
            request = replica.send(reply)
            yield request
            reply = None
            match request:
                case NextBatch():
                    reply = next(numbers, None)
                case Gradient():
                    reply = parameters * 0
                case Reduce():
                    reply = int(request.vector is not None)
                case Speed():
                    reply = 1.0
                case StartReduction():
                    counting.append(request.weight > 0)
                case FinishReduction():
                    reply = int(counting.popleft())


def count_outputs(job: Job, local: LocalModel) -> tuple[int, tuple[str, ...]]:
    """Evaluate a sample, and return the model's number of outputs, which metrics need, and the terms of its loss.

    The number is 0 without metrics, and on all but the first rank of a replica. Raise UsageError if the model gives no
    outputs, or a metric can't be computed from them.
    """
    if job.original.evaluated == "never" or not (job.metrics or job.original.own):
        return 0, ()
    with _without_trace(job):
        batch = (job.dataset.test or job.dataset.train).gather(np.arange(1))
        found = Evaluation(*local.model.evaluate(batch))
    terms = tuple(getattr(local.model, "terms", ()))
    named = Figures(job.metrics, terms=terms)
    if local.group is not None and local.group.rank:
        return 0, terms
    count = named.outputs(found.outputs, batch.targets)
    try:
        Figures(job.metrics, count).sums(found._replace(terms=()).sums(batch), found.outputs, batch.targets)
    except MpidlError as error:
        raise UsageError(str(error)) from error.__cause__
    return count, terms
