"""Proposing how ranks should share a job: ``mpidl plan CONFIG --ranks N``, and ``--apply``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mpidl.config import Config, toml
from mpidl.config.measured import Measured, read
from mpidl.engines.virtual import Times
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.durations import durations
from mpidl.job.job import Job
from mpidl.partition.plan import Plan
from mpidl.report.text import duration, quantity, table
from mpidl.runs.plan import of_cuts, of_model, of_ranks, plan
from mpidl.runs.prediction import predict
from mpidl.runs.ways import Way, Ways

#: The most partitions of a replica that are considered.
MOST_PARTITIONS = 64
#: What a topology is, in a proposal.
KEYS = ("servers", "replicas", "partitions", "stages", "micro_batches")
#: The most ranks for which a speed is predicted.
MOST = 1024
#: How many times as fast a job must be to count as faster.
BETTER = 1.02


def propose(config: Config, ranks: int) -> dict[str, Any]:
    """Propose how the ranks should share the job for it to be as fast as it can be.

    Parameters
    ----------
    config : Config
        Its own ``topology`` only counts where no speed can be predicted.
    ranks : int

    Returns
    -------
    dict
        What `mpidl.runs.plan.plan` returns of the proposed topology and, besides: proposal, a dict with servers,
        replicas, partitions, stages and micro_batches; why, a list of lines; and candidates, a dict for each topology
        that was compared with servers, replicas, partitions, stages, micro_batches, memory (bytes of the largest rank),
        fits (whether its nodes have that), gradient_seconds, step_seconds, samples_per_second, fetched and pushed (a
        replica's bytes a step), and load (what part of its capacity the fullest network card carries). There are none
        if no speed can be predicted.

    Raises
    ------
    UsageError
        The job can't be built, or there are too few or too many ranks.
    """
    job = build(config)
    reason = _unpredictable(job, ranks)
    if reason is not None:
        described, topology = plan(config, ranks), config.topology
        workers = sum(each["role"].startswith("worker") for each in described["roles"])
        counts = (config.servers, workers // topology.partitions, topology.partitions)
        micro_batches = topology.pipeline["micro_batches"]
        proposal = dict(zip(KEYS, (*counts, topology.stages, micro_batches), strict=True))
        return described | {"proposal": proposal, "candidates": [], "why": [f"no speed is predicted: {reason}"]}
    search = _Search(job, ranks)
    best = search.best()
    cut = search.plan(best)
    return of_model(job) | ({} if cut is None else {"cuts": of_cuts(job, cut)}) | of_ranks(
        job, best["servers"], ranks, cut
    ) | {
        "proposal": {key: best[key] for key in KEYS},
        "candidates": search.candidates,
        "why": list(search.why(best)),
    }  # fmt: skip


def _unpredictable(job: Job, ranks: int) -> str | None:
    """Return why the speed of a job can't be predicted, if it can't."""
    if job.algorithm.coordinated:
        return f"the steps of {job.algorithm.name} depend on what it finds"
    if job.config.topology.relay:
        return "virtual clusters have no relays; topology.relay = false would predict one without them"
    if ranks > MOST:
        return f"there are more than {MOST} ranks"
    section, layers = job.config.virtual, job.original.summaries()
    if section.compute is None and section.calibration is None and not any(each.operations for each in layers or ()):
        return "nobody knows the operations of this model; give the seconds of its gradient as virtual.compute"
    return None


class _Search:
    """Looks for the fastest topology of a job.

    Parameters
    ----------
    job : Job
    ranks : int

    Attributes
    ----------
    candidates : list of dict
        The topologies that were compared; see `propose`.
    """

    def __init__(self, job: Job, ranks: int) -> None:
        self._job, self._ranks = job, ranks
        section = job.config.virtual
        path = section.measurements()
        self._measured = Measured() if path is None else read(path)
        self._section = replace(section, slow=(), death=())
        self._given = path is None and not (section.compute is None and section.calibration is None)
        if self._given:
            self._origin = "the section [virtual]"
        elif path is None:
            self._origin = "assumed; `mpidl doctor --save` measures them"
        else:
            self._origin = f"{path}: {self._measured}"
        self._ways = Ways(job, self._measured.costs, self._times(1, 1), self._given)
        self.candidates: list[dict[str, Any]] = []

    def best(self) -> dict[str, Any]:
        """Compare topologies, and return the fastest of those that fit."""
        last = self._ways.uncut
        fastest = self._compare(last, 0)
        for way in self._ways.cut(min(MOST_PARTITIONS, self._ranks - 1 - min(1, self._job.config.servers))):
            if way.seconds >= last.seconds and fastest["fits"]:
                break
            found = self._compare(way, fastest["servers"])
            if fastest["fits"] and _speed(found) < BETTER * _speed(fastest):
                # More ranks don't make replicas fast enough: they are better off in replicas of their own.
                break
            last, fastest = way, found
        fitting = [each for each in self.candidates if each["fits"]] or self.candidates
        best = fitting[0]
        for each in fitting[1:]:
            if each["samples_per_second"] > BETTER * best["samples_per_second"]:
                best = each
        return best

    def plan(self, candidate: Mapping[str, Any]) -> Plan | None:
        """Return how a candidate's model is cut; None if it isn't."""
        return self._ways.known[candidate["partitions"], candidate["stages"]].plan

    def _compare(self, way: Way, servers: int) -> dict[str, Any]:
        """Compare numbers of servers, and return the fastest.

        From the one next to `servers` to where it gets slower and, on several nodes, all beyond that which could be
        faster: a second server slows down the workers beside the first one, and only more of them make up for that.
        """
        numbers = list(self._servers(way.partitions))
        place = max((i for i, number in enumerate(numbers) if number <= servers), default=0)
        found = {place: self._candidate(numbers[place], way)}
        for step in (1, -1):
            last = place
            while 0 <= (following := last + step) < len(numbers):
                found[following] = self._candidate(numbers[following], way)
                # More servers take more workers away, fewer have fuller links.
                if BETTER * _speed(found[following]) < _speed(found[last]):
                    break
                last = following
            if _speed(found[last]) > BETTER * _speed(found[place]):
                break
        if self._times(1, 1).cores is None:
            for i, number in enumerate(numbers):
                if i not in found and self._most(number, way) > BETTER * max(map(_speed, found.values())):
                    found[i] = self._candidate(number, way)
        self.candidates += [found[i] for i in sorted(found)]
        return max(found.values(), key=lambda each: (each["fits"], each["samples_per_second"]))

    def _servers(self, partitions: int) -> Iterator[int]:
        """Yield numbers of servers, each half as large again, that leave ranks for a replica; the first in any case."""
        servers = min(1, self._job.config.servers)
        yield servers
        while servers and 1 + (servers := servers + max(1, servers // 2)) + partitions <= self._ranks:
            yield servers

    def _candidate(self, servers: int, way: Way) -> dict[str, Any]:
        job, ranks = self._job, self._ranks
        described = of_ranks(job, servers, ranks, way.plan)
        replicas = (ranks - 1 - servers) // way.partitions
        times = replace(self._times(servers, replicas), cut=way.virtual)
        largest = max(sum(rank["memory"].values()) for rank in described["roles"])
        node = self._measured.node
        needed = described["memory_bytes"] if times.cores is not None else largest * min(ranks, times.ranks_per_node)
        topology = dict(zip(KEYS, (servers, replicas, way.partitions, way.stages, way.micro_batches), strict=True))
        fits = {"memory": largest, "fits": node is None or needed <= node.memory, "gradient_seconds": way.seconds}
        return topology | fits | asdict(predict(job, servers, replicas, times))

    def _most(self, servers: int, way: Way) -> float:
        """Return the samples/s of so many servers if exchanges took no time."""
        return (self._ranks - 1 - servers) // way.partitions * self._job.config.data.batch / way.seconds

    def _times(self, servers: int, replicas: int) -> Times:
        base = None if self._given else durations(self._job, self._measured, servers or replicas)
        return replace(self._section.times(replicas, base), messages=self._job.config.topology.messages)

    def why(self, best: Mapping[str, Any]) -> Iterator[str]:
        """Yield lines that say what the predictions rest on, and why this candidate is the best."""
        times = self._times(best["servers"], best["replicas"])
        if times.cores is not None:
            place = f"all ranks on one node of {_count(times.cores, 'core')}"
        else:
            place = f"{_count(times.ranks_per_node, 'rank')} on each node"
        yield f"figures: {self._origin}; {place}"
        yield (
            f"a step takes {duration(best['step_seconds'])}, a gradient alone {duration(best['gradient_seconds'])}; "
            f"each replica fetches {quantity(best['fetched'], 'B')} and pushes {quantity(best['pushed'], 'B')}"
        )
        if best["partitions"] > 1:
            yield f"{duration(self._ways.uncut.seconds)} on one rank, {_way(best)}"
        if best["load"]:
            carried = quantity(best["load"] * times.bandwidth, "B/s")
            yield f"the fullest network card carries {carried}, {100 * best['load']:.0f} % of what it can"
        yield from self._compared(best)

    def _compared(self, best: Mapping[str, Any]) -> Iterator[str]:
        same = [each for each in self.candidates if each["partitions"] == best["partitions"]]
        place = same.index(dict(best))
        for each in same[max(0, place - 1) : place + 2]:
            if each is not best:
                yield f"{_count(each['servers'], 'server')} would give {_against(each, best)}"
        for partitions in dict.fromkeys(each["partitions"] for each in self.candidates):
            if partitions != best["partitions"]:
                others = [each for each in self.candidates if each["partitions"] == partitions]
                fitting = [each for each in others if each["fits"]] or others
                fastest = max(fitting, key=_speed)
                servers = f" and {_count(fastest['servers'], 'server')}" * (fastest["servers"] > 0)
                yield f"replicas of {_count(partitions, 'rank')}{servers} would give {_against(fastest, best)}"
        if not best["fits"]:
            yield "no topology fits the memory of these nodes: take fewer ranks on each, or a smaller model"


def _speed(candidate: Mapping[str, Any]) -> float:
    return float(candidate["samples_per_second"])


def _against(one: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    percent = round(100 * (one["samples_per_second"] / best["samples_per_second"] - 1))
    change = f"{abs(percent)} % {'more' if percent > 0 else 'fewer'}" if percent else "as many"
    unfit = "" if one["fits"] else ", and don't fit the memory"
    return f"{change} samples/s{unfit}"


def _way(topology: Mapping[str, Any]) -> str:
    found = f"cut into {_count(topology['partitions'], 'partition')}"
    if topology["stages"] == 1:
        return found
    return f"{found} in {topology['stages']} stages, a minibatch in {topology['micro_batches']} micro-batches"


def apply(proposed: Mapping[str, Any], path: Path) -> str:
    """Write what was proposed into the configuration's file, and return a line about it.

    Raises
    ------
    UsageError
        Nothing was proposed, or the file can't be changed.
    """
    if not proposed["candidates"]:
        raise UsageError(f"--apply: {proposed['why'][0]}")
    proposal, present = proposed["proposal"], toml.read(path).get("topology", {})
    changed = {key: proposal[key] for key in KEYS[2:] if proposal[key] != present.get(key, 1)}
    if proposal["servers"]:
        changed = {"servers": proposal["servers"], **changed}
    if not changed:
        return f"{path}: stays as it is, {proposed['algorithm']} has no servers"
    toml.change(path, "topology", changed)
    return f"{path}: " + ", ".join(f"topology.{key} = {value}" for key, value in changed.items())


def as_text(proposed: Mapping[str, Any]) -> str:
    """Return the candidates, the proposal and its reasons as text for people."""
    lines = []
    if proposed["candidates"]:
        lines += ["", *_candidate_table(proposed["candidates"], proposed["proposal"]), ""]
    proposal = proposed["proposal"]
    counts = [_count(proposal[key], key.removesuffix("s")) for key in ("servers", "replicas")]
    way = f", {_way(proposal)}" if proposal["partitions"] > 1 else ""
    lines += [f"proposed: {' and '.join(counts)}{way}", *(f"- {line}" for line in proposed["why"])]
    return "\n".join(lines)


def _candidate_table(candidates: Sequence[Mapping[str, Any]], proposal: Mapping[str, int]) -> list[str]:
    keys = ("servers", "replicas", "partitions", "stages")
    rows = [[*keys, "largest rank", "fetched", "pushed", "step", "samples/s", ""]]
    for each in candidates:
        sizes = [quantity(each[key], "B") for key in ("memory", "fetched", "pushed")]
        mark = "proposed" if all(each[key] == proposal[key] for key in KEYS) else ""
        rows.append(
            [*(str(each[key]) for key in keys), *sizes, duration(each["step_seconds"]),
             f"{each['samples_per_second']:.0f}", mark]
        )  # fmt: skip
    return table(rows, left=0)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
