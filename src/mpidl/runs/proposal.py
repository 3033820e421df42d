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
from mpidl.report.text import duration, quantity, table
from mpidl.runs.plan import of_model, of_ranks
from mpidl.runs.prediction import predict

#: Ways to cut a model: partitions of a replica, and their stages.
CUTS = ((1, 1),)
#: The most ranks for which a speed is predicted.
MOST = 1024
#: How many times as fast a job must be to count as faster.
BETTER = 1.02


def propose(config: Config, ranks: int) -> dict[str, Any]:
    """Propose how many of the ranks should be servers for the job to be as fast as it can be.

    Parameters
    ----------
    config : Config
        Its own ``topology.servers`` only counts where no speed can be predicted.
    ranks : int

    Returns
    -------
    dict
        What `mpidl.runs.plan.plan` returns of the proposed topology and, besides: proposal, a dict with servers,
        replicas, partitions and stages; why, a list of lines; and candidates, a dict for each topology that was
        compared with servers, replicas, partitions, stages, memory (bytes of the largest rank), fits (whether its
        nodes have that), step_seconds, samples_per_second, and fetched and pushed, a replica's bytes a step. There are
        none if no speed can be predicted.

    Raises
    ------
    UsageError
        The job can't be built, or there are too few or too many ranks.
    """
    job = build(config)
    reason = _unpredictable(job, ranks)
    if reason is not None:
        servers = config.servers
        proposal = {"servers": servers, "replicas": ranks - 1 - servers, "partitions": 1, "stages": 1}
        described = of_model(job) | of_ranks(job, servers, ranks)
        return described | {"proposal": proposal, "candidates": [], "why": [f"no speed is predicted: {reason}"]}
    search = _Search(job, ranks)
    best = search.best()
    return of_model(job) | of_ranks(job, best["servers"], ranks) | {
        "proposal": {key: best[key] for key in ("servers", "replicas", "partitions", "stages")},
        "candidates": search.candidates,
        "why": list(search.why(best)),
    }  # fmt: skip


def _unpredictable(job: Job, ranks: int) -> str | None:
    """Return why the speed of a job can't be predicted, if it can't."""
    if job.algorithm.coordinated:
        return f"the steps of {job.algorithm.name} depend on what it finds"
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
        self.candidates: list[dict[str, Any]] = []

    def best(self) -> dict[str, Any]:
        """Compare topologies, and return the fastest of those that fit."""
        for partitions, stages in CUTS:
            fastest = 0.0
            for servers in self._servers(partitions):
                found = self._candidate(servers, partitions, stages)
                self.candidates.append(found)
                # More servers take more workers away.
                if BETTER * found["samples_per_second"] < fastest:
                    break
                fastest = max(fastest, found["samples_per_second"])
        fitting = [each for each in self.candidates if each["fits"]] or self.candidates
        best = fitting[0]
        for each in fitting[1:]:
            if each["samples_per_second"] > BETTER * best["samples_per_second"]:
                best = each
        return best

    def _servers(self, partitions: int) -> Iterator[int]:
        """Yield numbers of servers, each half as large again, that leave ranks for a replica; the first in any case."""
        servers = min(1, self._job.config.servers)
        yield servers
        while servers and 1 + (servers := servers + max(1, servers // 2)) + partitions <= self._ranks:
            yield servers

    def _candidate(self, servers: int, partitions: int, stages: int) -> dict[str, Any]:
        job, ranks = self._job, self._ranks
        described = of_ranks(job, servers, ranks)
        replicas = (ranks - 1 - servers) // partitions
        times = self._times(servers, replicas)
        largest = max(sum(rank["memory"].values()) for rank in described["roles"])
        node = self._measured.node
        needed = described["memory_bytes"] if times.cores is not None else largest * min(ranks, times.ranks_per_node)
        topology = {"servers": servers, "replicas": replicas, "partitions": partitions, "stages": stages}
        fits = {"memory": largest, "fits": node is None or needed <= node.memory}
        return topology | fits | asdict(predict(job, servers, replicas, times))

    def _times(self, servers: int, replicas: int) -> Times:
        base = None if self._given else durations(self._job, self._measured, servers or replicas)
        return self._section.times(replicas, base)

    def why(self, best: Mapping[str, Any]) -> Iterator[str]:
        """Yield lines that say what the predictions rest on, and why this candidate is the best."""
        times = self._times(best["servers"], best["replicas"])
        if times.cores is not None:
            place = f"all ranks on one node of {_count(times.cores, 'core')}"
        else:
            place = f"{_count(times.ranks_per_node, 'rank')} on each node"
        yield f"figures: {self._origin}; {place}"
        compute = times.compute.mean
        yield (
            f"a step takes {duration(best['step_seconds'])}, a gradient alone {duration(compute)}; "
            f"each replica fetches {quantity(best['fetched'], 'B')} and pushes {quantity(best['pushed'], 'B')}"
        )
        if best["servers"]:
            moved = best["replicas"] * max(best["fetched"], best["pushed"]) / best["servers"]
            load = moved / best["step_seconds"] / times.bandwidth
            busy = f", {100 * load:.0f} % of what it carries" if times.cores is None else ""
            yield f"each server's link carries {quantity(moved / best['step_seconds'], 'B/s')} each way{busy}"
        yield from self._compared(best)

    def _compared(self, best: Mapping[str, Any]) -> Iterator[str]:
        place = self.candidates.index(dict(best))
        for each in self.candidates[max(0, place - 1) : place + 2]:
            if each is not best:
                percent = round(100 * (each["samples_per_second"] / best["samples_per_second"] - 1))
                change = f"{abs(percent)} % {'more' if percent > 0 else 'fewer'}" if percent else "as many"
                unfit = "" if each["fits"] else ", and don't fit the memory"
                yield f"{_count(each['servers'], 'server')} would give {change} samples/s{unfit}"
        if not best["fits"]:
            yield "no topology fits the memory of these nodes: take fewer ranks on each, or a smaller model"


def apply(proposed: Mapping[str, Any], path: Path) -> str:
    """Write what was proposed into the configuration's file, and return a line about it.

    Raises
    ------
    UsageError
        Nothing was proposed, or the file can't be changed.
    """
    if not proposed["candidates"]:
        raise UsageError(f"--apply: {proposed['why'][0]}")
    servers = proposed["proposal"]["servers"]
    if not servers:
        return f"{path}: stays as it is, {proposed['algorithm']} has no servers"
    toml.change(path, "topology", {"servers": servers})
    return f"{path}: topology.servers = {servers}"


def as_text(proposed: Mapping[str, Any]) -> str:
    """Return the candidates, the proposal and its reasons as text for people."""
    lines = []
    if proposed["candidates"]:
        lines += ["", *_candidate_table(proposed["candidates"], proposed["proposal"]), ""]
    counts = [_count(proposed["proposal"][key], key.removesuffix("s")) for key in ("servers", "replicas")]
    lines += [f"proposed: {' and '.join(counts)}", *(f"- {line}" for line in proposed["why"])]
    return "\n".join(lines)


def _candidate_table(candidates: Sequence[Mapping[str, Any]], proposal: Mapping[str, int]) -> list[str]:
    keys = ("servers", "replicas", "partitions", "stages")
    rows = [[*keys, "largest rank", "fetched", "pushed", "step", "samples/s", ""]]
    for each in candidates:
        sizes = [quantity(each[key], "B") for key in ("memory", "fetched", "pushed")]
        mark = "proposed" if all(each[key] == proposal[key] for key in keys) else ""
        rows.append(
            [*(str(each[key]) for key in keys), *sizes, duration(each["step_seconds"]),
             f"{each['samples_per_second']:.0f}", mark]
        )  # fmt: skip
    return table(rows, left=0)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
