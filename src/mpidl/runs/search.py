"""The search for the topology with which a job is fastest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from mpidl.config.measured import Measured, read
from mpidl.config.topology import TopologySection
from mpidl.engines.virtual import Times
from mpidl.job.durations import durations
from mpidl.job.job import Job
from mpidl.partition.plan import Plan
from mpidl.runs.candidates import Candidate, Candidates
from mpidl.runs.features import virtual_intermediaries
from mpidl.runs.plan import of_ranks
from mpidl.runs.prediction import predict
from mpidl.topology.roles import Roles

#: Largest number of partitions of a replica that is considered.
MOST_PARTITIONS = 64
#: The numbers of a topology.
KEYS = ("servers", "replicas", "partitions", "stages", "micro_batches")
#: Least speed-up that counts.
BETTER = 1.02


class Search:
    """The search for the fastest topology of a job.

    `compared` has the candidates, as in the result of `mpidl.runs.proposal.propose`, and `nodes` the node of each rank.
    `candidates` are the ways to cut the model; `origin` is the source of the predictions' figures.
    """

    def __init__(self, job: Job, ranks: int) -> None:
        self._job, self._ranks = job, ranks
        section = job.config.virtual
        path = section.measurements()
        self._measured = Measured() if path is None else read(path)
        self._section = replace(section, slow=(), death=())
        self._given = path is None and not (section.compute is None and section.calibration is None)
        if self._given:
            self.origin = "the section [virtual]"
        elif path is None:
            self.origin = "assumed; `mpidl doctor --save` measures them"
        else:
            self.origin = f"{path}: {self._measured}"
        times = self.times(1, 1)
        self.nodes = [0 if times.cores is not None else rank // times.ranks_per_node for rank in range(ranks)]
        self.candidates = Candidates(job, self._measured.costs, times, self._given)
        self.compared: list[dict[str, Any]] = []

    def best(self) -> dict[str, Any]:
        """Compare topologies, and return the fastest of those that fit."""
        last = self.candidates.uncut
        fastest = self._compare(last, 0)
        for cut in self.candidates.cut(min(MOST_PARTITIONS, self._ranks - 1 - min(1, self._job.config.servers))):
            if cut.seconds >= last.seconds and fastest["fits"]:
                break
            found = self._compare(cut, fastest["servers"])
            if fastest["fits"] and speed(found) < BETTER * speed(fastest):
                # More ranks don't make replicas fast enough: separate replicas are faster.
                break
            last, fastest = cut, found
        fitting = [each for each in self.compared if each["fits"]] or self.compared
        best = fitting[0]
        for each in fitting[1:]:
            if each["samples_per_second"] > BETTER * best["samples_per_second"]:
                best = each
        return best

    def plan(self, candidate: Mapping[str, Any]) -> Plan | None:
        """Return the plan of a candidate's cut model; None if it isn't cut."""
        return self.candidates.known[candidate["partitions"], candidate["stages"]].plan

    def _compare(self, cut: Candidate, servers: int) -> dict[str, Any]:
        """Compare numbers of servers, and return the fastest.

        Start near `servers`, and stop in each direction when it gets slower. On several nodes, also compare all other
        numbers that could be faster: a second server slows down workers on its node, and only more servers make up for
        that.
        """
        numbers = list(self._servers(cut.partitions))
        place = max((i for i, number in enumerate(numbers) if number <= servers), default=0)
        found = {place: self.topology(numbers[place], cut)}
        for step in (1, -1):
            last = place
            while 0 <= (following := last + step) < len(numbers):
                found[following] = self.topology(numbers[following], cut)
                # More servers leave fewer workers, and fewer servers have busier links.
                if BETTER * speed(found[following]) < speed(found[last]):
                    break
                last = following
            if speed(found[last]) > BETTER * speed(found[place]):
                break
        if self.times(1, 1).cores is None:
            for i, number in enumerate(numbers):
                if i not in found and self._most(number, cut) > BETTER * max(map(speed, found.values())):
                    found[i] = self.topology(number, cut)
        self.compared += [found[i] for i in sorted(found)]
        return max(found.values(), key=lambda each: (each["fits"], each["samples_per_second"]))

    def _servers(self, partitions: int) -> Iterator[int]:
        """Yield numbers of servers, each half as large again, that leave ranks for a replica, and always the first."""
        servers = min(1, self._job.config.servers)
        yield servers
        while servers and 1 + (servers := servers + max(1, servers // 2)) + partitions <= self._ranks:
            yield servers

    def topology(self, servers: int, cut: Candidate, section: TopologySection | None = None) -> dict[str, Any]:
        """Predict a topology, with the ways to the servers of a section, by default the job's."""
        job, ranks, section = self._job, self._ranks, section or self._job.config.topology
        described = of_ranks(job, self.nodes, servers, cut.plan, section)
        replicas = len(self.roles(servers, cut, section).replicas)
        times = self._times_of(servers, replicas, cut, section)
        largest = max(sum(rank["memory"].values()) for rank in described["roles"])
        node = self._measured.node
        needed = described["memory_bytes"] if times.cores is not None else largest * min(ranks, times.ranks_per_node)
        topology = dict(zip(KEYS, (servers, replicas, cut.partitions, cut.stages, cut.micro_batches), strict=True))
        fits = {"memory": largest, "fits": node is None or needed <= node.memory, "gradient_seconds": cut.seconds}
        return topology | fits | asdict(predict(job, servers, replicas, times))

    def encoded(self, topology: Mapping[str, Any], wire: str) -> dict[str, Any]:
        """Predict a topology with pushes and fetches in a wire format."""
        servers, replicas, partitions, stages = (topology[key] for key in KEYS[:4])
        algorithm = replace(self._job.algorithm, wire=wire, wire_fetch=wire)
        cut, section = self.candidates.known[partitions, stages], self._job.config.topology
        times = self._times_of(servers, replicas, cut, section)
        return {**topology, **asdict(predict(self._job, servers, replicas, times, algorithm))}

    def _times_of(self, servers: int, replicas: int, cut: Candidate, section: TopologySection) -> Times:
        times, between = self.times(servers, replicas), virtual_intermediaries(section)
        return replace(times, cut=cut.virtual, intermediaries=between, ranks=self._ranks)

    def roles(self, servers: int, cut: Candidate, section: TopologySection) -> Roles:
        """Return the role of each rank."""
        return section.assign(self.nodes, servers, cut.partitions)

    def _most(self, servers: int, cut: Candidate) -> float:
        """Return the samples/s with this number of servers if exchanges took no time."""
        replicas = len(self.roles(servers, cut, self._job.config.topology).replicas)
        return replicas * self._job.config.data.batch / cut.seconds

    def times(self, servers: int, replicas: int) -> Times:
        """Return the durations with these numbers of servers and of replicas of one rank."""
        base = None if self._given else durations(self._job, self._measured, servers or replicas)
        return replace(self._section.times(replicas, base), messages=self._job.config.topology.messages)


def speed(candidate: Mapping[str, Any]) -> float:
    """Return the samples per second of a candidate."""
    return float(candidate["samples_per_second"])
