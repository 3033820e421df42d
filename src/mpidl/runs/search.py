"""The search for the topology with which a job is fastest, by virtual clusters that run it without its arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, repeat
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from mpidl.algorithms import Algorithm, Exchange
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, FinishReduction, Gradient, Push, Reduce
from mpidl.config import DataSection, TopologySection
from mpidl.data.batch import Batch
from mpidl.data.dataset import Split
from mpidl.data.schedule import Portions, Schedule
from mpidl.engines.virtual import Hooks, Times, Training, VirtualEngine, VirtualTime
from mpidl.errors import UsageError
from mpidl.job.durations import JobDurations
from mpidl.job.job import Job
from mpidl.job.planning import ModelCut, cuts
from mpidl.job.rehearsal import requests_of
from mpidl.nn.model import PlacedModel
from mpidl.parameters import Range, held_by_replicas, split
from mpidl.rules import Sgd
from mpidl.runs.features import sparse, virtual_intermediaries
from mpidl.runs.plan import of_ranks
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.topology.roles import Roles
from mpidl.wire import Wire

#: Steps of each replica: at least and at most; messages of all replicas after which fewer are made.
STEPS, MESSAGES = (16, 256), 4_000
#: Requests of a replica within which it exchanges parameters.
REQUESTS = 5_000
#: Elements of a shard, and those of a shard with encoded pushes or fetches: a block of the wire format.
FEW, MANY = 16, 1024

#: Largest number of partitions of a replica that is considered.
MOST_PARTITIONS = 64
#: The numbers of a topology.
KEYS = ("servers", "replicas", "partitions", "stages", "micro_batches")
#: Least speed-up that counts.
BETTER = 1.02
#: The most topologies that are simulated with each way to the servers; more while none fits the memory.
SIMULATED, MOST_SIMULATED = 4, 12
#: Replicas times servers, above which a part of a cluster stands for the whole; the fewest nodes of that part, and how
#: much more or fewer servers it may have for a node.
LARGE, FEWEST_NODES, TOLERANCE = 500, 8, 0.05
#: Tickets for portions that a coordinator hands out to other nodes in a second; see ``benchmarks/coordinator.py``.
TICKETS = 5000


class Topology(NamedTuple):
    """A topology to compare.

    It can't exceed `bound` samples/s; `estimate` is its speed if gradients and exchanges don't overlap. `way` is the
    key that chooses how workers reach the servers, if the job chooses another.
    """

    bound: float
    estimate: float
    section: TopologySection
    way: str
    cut: ModelCut
    roles: Roles

    def settings(self, own: TopologySection) -> dict[str, Any]:
        """Return the keys of a configuration that choose this topology, where they differ from a job's own."""
        return {f"topology.{key}": value for key, value in vars(self.section).items() if value != getattr(own, key)}


class Search:
    """The search for the fastest topology of a job; keys that are `given`, such as ``"topology.servers"``, stay.

    `compared` has the topologies that were simulated, with their predictions as in the result of
    `mpidl.runs.proposal.propose`, and `nodes` the node of each rank. `cuts` are the ways to cut the model, the first of
    which leaves it whole.
    """

    def __init__(self, job: Job, ranks: int, given: Collection[str] = ()) -> None:
        self._job, self._ranks, self._given = job, ranks, given
        self.durations = JobDurations.known(replace(job.config.virtual, slow=(), death=()))
        self.times = times = self.durations.times(job, 1, 1)
        self.nodes = [0 if times.cores is not None else rank // times.ranks_per_node for rank in range(ranks)]
        most = min(MOST_PARTITIONS, ranks - 1 - min(1, job.config.servers))
        self.cuts = list(cuts(job, self.durations, times, most))
        self.compared: list[tuple[Topology, dict[str, Any]]] = []
        size, algorithm = job.original.layout.size, job.algorithm

        def moved(wire: Wire | None) -> int:
            return size * job.dtype.itemsize if wire is None else wire.size(size, job.dtype)

        # Gradients of a replica from one exchange to the next, and an exchange's bytes in its busier direction.
        self._every, self._bytes = exchanges_every(algorithm), 0
        if algorithm.exchange is Exchange.SERVERS:
            self._bytes = max(moved(algorithm.encoding()), moved(algorithm.fetch_encoding()))

    def best(self) -> tuple[Topology, dict[str, Any]]:
        """Return the fastest topology of those that fit the nodes' memory, and its prediction.

        Raise UsageError if there are too few ranks, or the algorithm's settings suit no number of replicas.
        """
        self._job.config.topology.assign(self.nodes, self._servers()[0], 1)
        refused: dict[int, UsageError] = {}
        most, simulated = 0.0, Counter[str]()
        for each in sorted(self.topologies(), key=lambda each: each.estimate, reverse=True):
            if each.bound < BETTER * most or simulated[each.way] == (SIMULATED if most else MOST_SIMULATED):
                continue
            try:
                predicted = self.predict(each)
            except UsageError as error:
                refused[len(each.roles.replicas)] = error
                continue
            self.compared.append((each, predicted))
            simulated[each.way] += 1
            if predicted["fits"]:
                most = max(most, predicted["samples_per_second"])
        if not self.compared:
            raise refused[max(refused)]
        fitting = [each for each in self.compared if each[1]["fits"]] or self.compared
        fastest = max(predicted["samples_per_second"] for _, predicted in fitting)
        fast = [each for each in fitting if BETTER * each[1]["samples_per_second"] >= fastest]
        return min(fast, key=lambda each: (each[0].cut.partitions, each[1]["servers"], len(each[1]["settings"])))

    def topologies(self) -> Iterator[Topology]:
        """Yield all topologies to compare."""
        own = self._job.config.topology
        ways = {"": own} | {
            key: section
            for key, section in own.alternatives().items()
            if key not in self._given and _possible(section, self._job)
        }
        for cut in self.cuts:
            for servers in self._servers():
                if 1 + servers + cut.partitions > self._ranks:
                    continue
                numbers: dict[str, Any] = {"partitions": cut.partitions, "stages": cut.stages}
                if servers:
                    numbers["servers"] = servers
                if cut.stages > 1 or own.micro_batches:
                    numbers["micro_batches"] = cut.micro_batches
                seen: list[Roles] = []
                for way, section in ways.items():
                    roles = section.assign(self.nodes, servers, cut.partitions)
                    if roles not in seen:
                        seen.append(roles)
                        yield Topology(*self._speeds(roles, cut), replace(section, **numbers), way, cut, roles)

    def _servers(self) -> list[int]:
        """Return numbers of servers to compare: each half as large again, and one and two on each node."""
        own, nodes, servers = self._job.config.servers, self.nodes[-1] + 1, 1
        if not own or "topology.servers" in self._given:
            return [own]
        numbers = {nodes, 2 * nodes}
        while servers < self._ranks:
            numbers.add(servers)
            servers += max(1, servers // 2)
        return sorted(numbers)

    def _speeds(self, roles: Roles, cut: ModelCut) -> tuple[float, float]:
        """Return samples/s that a topology can't exceed, and those if gradients and exchanges don't overlap.

        In the time of a step of all replicas, each computes a gradient, the fullest network card carries its part of
        all exchanges, each server applies its part of them, and each rank that exchanges for others copies theirs.
        """
        servers, replicas, nodes = len(roles.servers), len(roles.replicas), self.nodes[-1] + 1
        times, exchanging = self.durations.times(self._job, servers, replicas), 0.0
        computing = cut.seconds * max(1.0, replicas * cut.partitions / (times.cores or inf))
        if self._bytes:
            # A rank that exchanges for several replicas does so once for a step of each.
            exchangers = roles.fetchers()
            serving = np.bincount([self.nodes[rank] for rank in roles.servers], minlength=nodes) / servers
            elsewhere = len(exchangers) - np.bincount([self.nodes[rank] for rank in exchangers], minlength=nodes)
            copied = max(map(len, roles.served), default=0) / cut.partitions
            exchanging = max(
                float((serving * elsewhere).max()) * self._bytes / times.bandwidth,
                len(exchangers) * times.service.mean,
                copied * self._bytes / times.memory_bandwidth,
            )
        samples, exchanging = replicas * self._job.config.data.batch, exchanging / self._every
        return samples / max(computing, exchanging), samples / (computing + exchanging)

    def predict(self, topology: Topology) -> dict[str, Any]:
        """Predict a topology; see `mpidl.runs.proposal.propose`."""
        cut, roles, names = topology.cut, topology.roles, topology.roles.names()
        described = of_ranks(self._job, self.nodes, roles, cut.plan)
        largest = max(sum(rank["memory"].values()) for rank in described["roles"])
        node, on_node = self.durations.measured.node, min(self._ranks, self.times.ranks_per_node)
        needed = described["memory_bytes"] if self.times.cores is not None else largest * on_node
        counts = (len(roles.servers), len(roles.replicas), cut.partitions, cut.stages, cut.micro_batches)
        return dict(zip(KEYS, counts, strict=True)) | {
            "roles": dict(Counter(name.split()[0] for name in names)),
            "settings": topology.settings(self._job.config.topology),
            "memory": largest,
            "fits": node is None or needed <= node.memory,
            "gradient_seconds": cut.seconds,
            **asdict(self.simulate(topology)),
        }

    def simulate(self, topology: Topology, algorithm: Algorithm | None = None) -> Prediction:
        """Predict a topology, with another algorithm if given.

        Of a large cluster, a part of the nodes is simulated, with its part of the servers.
        """
        section, replicas, nodes = topology.section, len(topology.roles.replicas), self.nodes[-1] + 1
        part, servers = self._part(len(topology.roles.servers), replicas)
        simulated = [node for node in self.nodes if node < part]
        its = len(section.assign(simulated, servers).replicas)
        times, between = self.durations.times(self._job, servers, its), virtual_intermediaries(section)
        times = replace(times, ranks=len(simulated), cut=topology.cut.virtual, intermediaries=between)
        if part < nodes:  # Of fewer nodes, more of the traffic stays within nodes.
            times = replace(times, bandwidth=times.bandwidth * (1 - 1 / part) / (1 - 1 / nodes))
        found = predict(self._job, servers, its, times, algorithm)
        return replace(found, samples_per_second=found.samples_per_second * (replicas / its))

    def _part(self, servers: int, replicas: int) -> tuple[int, int]:
        """Return the numbers of nodes and servers to simulate, in the same proportion as all are."""
        nodes = self.nodes[-1] + 1
        alike = self.times.cores is None and self._ranks == nodes * self.times.ranks_per_node
        if not alike or replicas * servers <= LARGE or self.durations.section.service is not None:
            return nodes, servers
        parts = [(part, max(1, round(servers * part / nodes))) for part in range(FEWEST_NODES, nodes)]
        parts = [(part, few) for part, few in parts if abs(few * nodes / (servers * part) - 1) <= TOLERANCE]
        small = [(part, few) for part, few in parts if replicas * part / nodes * few <= LARGE]
        return max(small) if small else min(parts, default=(nodes, servers))


def larger_portion(samples_per_second: float, data: DataSection) -> int | None:
    """Return the samples of a portion with which the coordinator can hand out tickets as fast; None if it can."""
    if samples_per_second <= TICKETS * data.portion:
        return None
    return ceil(2 * samples_per_second / TICKETS / data.batch) * data.batch


def unpredictable(job: Job, ranks: int, most: int, name: str = "CONFIG") -> str | None:
    """Return the reason why the speed of a job, with a configuration's file, can't be predicted, if there is one."""
    if ranks > most:
        return f"there are more than {most} ranks"
    if job.algorithm.coordinated:
        return f"the steps of {job.algorithm.name} depend on their results"
    section, layers = job.config.virtual, job.original.summaries()
    if not JobDurations.known(section).gradient_given and not any(each.operations for each in layers or ()):
        number, run = section.ranks_per_node or min(4, ranks), job.config.run.directory.with_name("measured")
        return (
            f"the operations of this model are unknown; `mpidl train {name} -n {number} --set run.steps={50 * number} "
            f"--set run.name={run.name}` on such a node measures its gradients: then add "
            f"--set virtual.calibration={run}, or give their seconds as virtual.compute"
        )
    return None


def _possible(section: TopologySection, job: Job) -> bool:
    """Return whether a topology suits the algorithm, the run and the model."""
    try:
        section.check(job.algorithm, job.config.run)
        if job.original.tables:
            section.check_whole("but the model has tables")
            section.check_direct("but virtual clusters have none for tables")
    except UsageError:
        return False
    return True


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
    encoded, fragments = algorithm.encoding() or algorithm.fetch_encoding(), algorithm.streamed
    model = _ZeroGradients(count * (MANY if encoded else FEW) * max(1, fragments))
    scale = job.original.layout.size * job.dtype.itemsize / model.parameters.nbytes
    (low, high), period = STEPS, 4 * exchanges_every(algorithm)
    each = max(low, min(high, MESSAGES * period // (4 * replicas * count)))
    steps = replicas * -(-each // period) * period
    schedule = Schedule(Portions(1, 1, 1, 0), steps=steps)
    taken: list[float] = []
    whole = Range(0, model.parameters.size)
    parts = split(whole.size, fragments) if fragments else [whole]
    state = partial(ReplicaState, fragments=parts if fragments else ())
    times = replace(
        times, bandwidth=times.bandwidth / scale, memory_bandwidth=times.memory_bandwidth / scale,
        chunk=times.chunk / scale,
    )  # fmt: skip

    def shard(range: Range) -> Shard:
        parameters, rule = np.zeros(range.size, np.float32), None if job.config.rule is None else Sgd()
        state = {name: np.zeros_like(parameters) for name in algorithm.vectors()}
        policy = algorithm.shard_policy(replicas)
        return Shard(range, parameters, ScheduledRule(rule), policy, range.size, state=state)

    engine = VirtualEngine(
        Training(algorithm, model, _NoData(), schedule, state, sparse.predicted(job, servers, replicas, scale)),
        [shard(each.range) for each in held_by_replicas([whole], count, [parts])],
        replicas,
        time=VirtualTime(times, job.config.run.seed),
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


class _ZeroGradients(PlacedModel):
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
