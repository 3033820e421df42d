"""The search for the topology with which a job is fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.config.topology import TopologySection
from mpidl.engines.virtual import Times
from mpidl.errors import UsageError
from mpidl.job.durations import Durations
from mpidl.job.job import Job
from mpidl.runs.candidates import Candidate, Candidates
from mpidl.runs.features import virtual_intermediaries
from mpidl.runs.plan import of_ranks
from mpidl.runs.prediction import Prediction, exchanges_every, predict
from mpidl.topology.roles import Roles
from mpidl.wire import Wire

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


class Topology(NamedTuple):
    """A topology to compare.

    It can't exceed `bound` samples/s; `estimate` is its speed if gradients and exchanges don't overlap. `settings` are
    the keys of a configuration that choose it, where they differ from the job's own.
    """

    bound: float
    estimate: float
    servers: int
    cut: Candidate
    section: TopologySection
    settings: dict[str, Any]


class Search:
    """The search for the fastest topology of a job; keys that are `given`, such as ``"topology.servers"``, stay.

    `compared` has the predictions of the topologies that were simulated, as in the result of
    `mpidl.runs.proposal.propose`, and `nodes` the node of each rank. `candidates` are the ways to cut the model.
    """

    def __init__(self, job: Job, ranks: int, given: Collection[str] = ()) -> None:
        self._job, self._ranks, self._given = job, ranks, given
        self.durations = Durations.known(replace(job.config.virtual, slow=(), death=()))
        times = self.times(1, 1)
        self.nodes = [0 if times.cores is not None else rank // times.ranks_per_node for rank in range(ranks)]
        self.candidates = Candidates(job, self.durations.measured.costs, times, self.durations.gradient_given)
        self.compared: list[dict[str, Any]] = []
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
        self.roles(self._servers()[0], self.candidates.uncut, self._job.config.topology)
        found: list[tuple[Topology, dict[str, Any]]] = []
        refused: dict[int, UsageError] = {}
        most, simulated = 0.0, Counter[TopologySection]()
        for each in sorted(self.topologies(), key=lambda each: each.estimate, reverse=True):
            if each.bound < BETTER * most or simulated[each.section] == (SIMULATED if most else MOST_SIMULATED):
                continue
            try:
                predicted = self.predict(each)
            except UsageError as error:
                refused[len(self.roles(each.servers, each.cut, each.section).replicas)] = error
                continue
            found.append((each, predicted))
            self.compared.append(predicted)
            simulated[each.section] += 1
            if predicted["fits"]:
                most = max(most, speed(predicted))
        if not found:
            raise refused[max(refused)]
        fitting = [each for each in found if each[1]["fits"]] or found
        fast = [
            each for each in fitting if BETTER * speed(each[1]) >= max(speed(predicted) for _, predicted in fitting)
        ]
        return min(fast, key=lambda each: (each[0].cut.partitions, each[0].servers, len(each[0].settings)))

    def topologies(self) -> Iterator[Topology]:
        """Yield all topologies to compare."""
        config = self._job.config
        others = {
            setting: section
            for setting, section in config.topology.alternatives().items()
            if setting.partition(" = ")[0] not in self._given and _possible(section, self._job)
        }
        most = min(MOST_PARTITIONS, self._ranks - 1 - min(1, config.servers))
        cuts = [self.candidates.uncut, *self.candidates.cut(most)]
        for cut in cuts:
            for servers in self._servers():
                if 1 + servers + cut.partitions > self._ranks:
                    continue
                found = [("", config.topology, own := self.roles(servers, cut, config.topology))]
                found += [(setting, section, self.roles(servers, cut, section)) for setting, section in others.items()]
                for setting, section, roles in found:
                    if not setting or roles != own:
                        settings = self._settings(servers, cut, setting)
                        yield Topology(*self._speeds(roles, cut), servers, cut, section, settings)

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

    def _settings(self, servers: int, cut: Candidate, setting: str) -> dict[str, Any]:
        own = self._job.config.topology
        found: dict[str, Any] = {}
        numbers = {"servers": servers, "partitions": cut.partitions, "stages": cut.stages}
        if cut.stages > 1:
            numbers["micro_batches"] = cut.micro_batches
        for key, number in numbers.items():
            if number and number != getattr(own, key):
                found[f"topology.{key}"] = number
        key, _, value = setting.partition(" = ")
        return found | ({key: value == "true"} if key else {})

    def _speeds(self, roles: Roles, cut: Candidate) -> tuple[float, float]:
        """Return samples/s that a topology can't exceed, and those if gradients and exchanges don't overlap.

        In the time of a step of all replicas, each computes a gradient, the fullest network card carries its part of
        all exchanges, each server applies its part of them, and each rank that exchanges for others copies theirs.
        """
        servers, replicas, nodes = len(roles.servers), len(roles.replicas), self.nodes[-1] + 1
        times, exchanging = self.times(servers, replicas), 0.0
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
        servers, cut, section = topology.servers, topology.cut, topology.section
        described = of_ranks(self._job, self.nodes, servers, cut.plan, section)
        roles = self.roles(servers, cut, section)
        replicas = len(roles.replicas)
        times = self._times_of(servers, replicas, cut, section)
        largest = max(sum(rank["memory"].values()) for rank in described["roles"])
        node, on_node = self.durations.measured.node, min(self._ranks, times.ranks_per_node)
        needed = described["memory_bytes"] if times.cores is not None else largest * on_node
        numbers = dict(zip(KEYS, (servers, replicas, cut.partitions, cut.stages, cut.micro_batches), strict=True))
        return numbers | {
            "roles": dict(Counter(name.split()[0] for name in roles.names())),
            "settings": topology.settings,
            "memory": largest,
            "fits": node is None or needed <= node.memory,
            "gradient_seconds": cut.seconds,
            **asdict(self._predict(servers, replicas, cut, section, times)),
        }

    def _predict(
        self, servers: int, replicas: int, cut: Candidate, section: TopologySection, times: Times
    ) -> Prediction:
        """Predict a topology; of a large one, a part of the nodes is simulated, with its part of the servers."""
        nodes, (part, few) = self.nodes[-1] + 1, self._part(servers, replicas, times)
        if part == nodes:
            return predict(self._job, servers, replicas, times)
        ranks = part * times.ranks_per_node
        its = len(section.assign(self.nodes[:ranks], few, cut.partitions).replicas)
        # Of fewer nodes, more of the traffic stays within nodes.
        bandwidth = times.bandwidth * (1 - 1 / part) / (1 - 1 / nodes)
        times = replace(self._times_of(few, its, cut, section), ranks=ranks, bandwidth=bandwidth)
        found = predict(self._job, few, its, times)
        return replace(found, samples_per_second=found.samples_per_second * replicas / its)

    def _part(self, servers: int, replicas: int, times: Times) -> tuple[int, int]:
        """Return the numbers of nodes and servers to simulate, in the same proportion as all are."""
        nodes = self.nodes[-1] + 1
        alike = times.cores is None and self._ranks == nodes * times.ranks_per_node
        if not alike or replicas * servers <= LARGE or self.durations.section.service is not None:
            return nodes, servers
        parts = [(part, max(1, round(servers * part / nodes))) for part in range(FEWEST_NODES, nodes)]
        parts = [(part, few) for part, few in parts if abs(few * nodes / (servers * part) - 1) <= TOLERANCE]
        small = [(part, few) for part, few in parts if replicas * part / nodes * few <= LARGE]
        return max(small) if small else min(parts, default=(nodes, servers))

    def encoded(self, topology: Topology, wire: str) -> Prediction:
        """Predict a topology with pushes and fetches in a wire format."""
        algorithm = replace(self._job.algorithm, wire=wire, wire_fetch=wire)
        servers, cut, section = topology.servers, topology.cut, topology.section
        replicas = len(self.roles(servers, cut, section).replicas)
        return predict(self._job, servers, replicas, self._times_of(servers, replicas, cut, section), algorithm)

    def _times_of(self, servers: int, replicas: int, cut: Candidate, section: TopologySection) -> Times:
        times, between = self.times(servers, replicas), virtual_intermediaries(section)
        return replace(times, cut=cut.virtual, intermediaries=between, ranks=self._ranks)

    def roles(self, servers: int, cut: Candidate, section: TopologySection) -> Roles:
        """Return the role of each rank."""
        return section.assign(self.nodes, servers, cut.partitions)

    def times(self, servers: int, replicas: int) -> Times:
        """Return the durations with these numbers of servers and of replicas of one rank."""
        times = self.durations.times(self._job, servers or replicas, replicas)
        return replace(times, messages=self._job.config.topology.messages)


def speed(candidate: Mapping[str, Any]) -> float:
    """Return the samples per second of a candidate."""
    return float(candidate["samples_per_second"])


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
