"""Predicting how fast a job would run: its algorithm on a virtual cluster, without the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np

from mpidl.algorithms import Algorithm, Exchange
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, FinishReduction, Gradient, Push, Reduce
from mpidl.data.batch import Batch
from mpidl.data.dataset import Split
from mpidl.data.schedule import Portions, Schedule
from mpidl.engines.virtual import Hooks, Times, Training, VirtualEngine, VirtualTime
from mpidl.job.job import Job
from mpidl.job.rehearsal import requests_of
from mpidl.nn.model import PlacedModel
from mpidl.parameters import Range, held_by_replicas, split
from mpidl.rules import Sgd
from mpidl.runs.features import sparse
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

#: Steps of each replica: at least and at most; messages of all replicas after which fewer are made.
STEPS, MESSAGES = (16, 256), 4_000
#: Requests of a replica within which it exchanges parameters.
REQUESTS = 5_000
#: Elements of a shard, and those of a shard with encoded pushes or fetches: a block of the wire format.
FEW, MANY = 16, 1024


@dataclass(frozen=True)
class Prediction:
    """The speed of a job, after its first steps.

    `step_seconds` is the time from one gradient of a replica to its next; `samples_per_second` is the speed of all
    replicas together. `fetched` and `pushed` are a replica's bytes a step. `load` is the fraction of its capacity that
    the busiest network card carries, in its busier direction; 0 without a network. `busy` is the fraction of its time
    that the busiest server works; 0 without servers.
    """

    step_seconds: float
    samples_per_second: float
    fetched: float
    pushed: float
    load: float
    busy: float


def predict(job: Job, servers: int, replicas: int, times: Times, algorithm: Algorithm | None = None) -> Prediction:
    """Predict the speed of a job.

    The vectors of the virtual cluster have a few elements, and its links so much less bandwidth: all takes as long as
    with those of the job, and needs none of their memory.

    The job's algorithm, or `algorithm` in its place, has no coordinator. `servers` is 0 for one without servers.
    """
    algorithm = algorithm or job.algorithm
    count = 1 if algorithm.exchange is Exchange.SHARED_MEMORY else servers or replicas
    encoded = algorithm.encoding() or algorithm.fetch_encoding()
    fragments = algorithm.streamed
    model = _Nothing(count * (MANY if encoded else FEW) * max(1, fragments))
    scale = job.original.layout.size * job.dtype.itemsize / model.parameters.nbytes
    (low, high), period = STEPS, 4 * exchanges_every(algorithm)
    each = max(low, min(high, MESSAGES * period // (4 * replicas * count)))
    steps = replicas * -(-each // period) * period
    schedule = Schedule(Portions(1, 1, 1, 0), steps=steps)
    taken: list[float] = []
    whole = Range(0, model.parameters.size)
    parts = split(whole.size, fragments) if fragments else [whole]
    state = partial(ReplicaState, fragments=parts if fragments else ())
    engine = VirtualEngine(
        Training(algorithm, model, _NoData(), schedule, state, sparse.predicted(job, servers, replicas, scale)),
        [_shard(job, algorithm, each.range, replicas) for each in held_by_replicas([whole], count, [parts])],
        replicas,
        time=VirtualTime(_scaled(times, scale), job.config.run.seed),
        hooks=Hooks(on_batch=lambda: taken.append(engine.now)),
    )
    totals = engine.run()
    # Neither the beginning, when all replicas fetch together, nor the end, when some have ended.
    first, last = steps // 4, steps - steps // 4
    seconds = (taken[last] - taken[first]) / (last - first) * replicas
    return Prediction(
        step_seconds=seconds,
        samples_per_second=replicas * job.config.data.batch / seconds,
        fetched=totals.bytes_fetched / totals.batches * scale,
        pushed=totals.bytes_pushed / totals.batches * scale,
        load=engine.load,
        busy=max(totals.spent.busy_seconds, default=0.0) / engine.now if engine.now else 0.0,
    )


def exchanges_every(algorithm: Algorithm) -> int:
    """Return the number of gradients of a replica from one exchange of parameters to the next."""
    gradients, every = 0, 1
    for request in islice(requests_of(algorithm, np.zeros(1, np.float32), repeat(0), replicas=2), REQUESTS):
        if isinstance(request, Gradient):
            gradients += 1
        elif isinstance(request, Fetch | Push | Reduce | FinishReduction):
            every, gradients = max(every, gradients), 0
    return every


class _Nothing(PlacedModel):
    """A model whose gradients are 0 and take no time to compute."""

    def __init__(self, size: int) -> None:
        self.parameters = np.zeros(size, np.float32)
        self._gradient = np.zeros(size, np.float32)

    def loss_and_gradient(self, batch: Batch) -> tuple[float, np.ndarray]:
        return 0.0, self._gradient


class _NoData(Split):
    """A split of one sample."""

    samples = 1
    _batch = Batch(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))

    def gather(self, indices: Any, epoch: int = 0) -> Batch:
        return self._batch


def _shard(job: Job, algorithm: Algorithm, range: Range, replicas: int) -> Shard:
    parameters = np.zeros(range.size, np.float32)
    state = {name: np.zeros_like(parameters) for name in algorithm.vectors()}
    rule = ScheduledRule(None if job.config.rule is None else Sgd())
    return Shard(range, parameters, rule, algorithm.shard_policy(replicas), range.size, state=state)


def _scaled(times: Times, scale: float) -> Times:
    """Return durations with which vectors that are shorter by a factor take as long."""
    return replace(
        times, bandwidth=times.bandwidth / scale, memory_bandwidth=times.memory_bandwidth / scale,
        chunk=times.chunk / scale,
    )  # fmt: skip
