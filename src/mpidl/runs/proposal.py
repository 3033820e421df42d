"""Proposing how ranks should share a job: ``mpidl plan CONFIG --ranks N``, and ``--apply``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mpidl.algorithms import Exchange
from mpidl.config import Config, toml
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.job import Job
from mpidl.report.text import counted, duration, quantity, titled
from mpidl.runs import search
from mpidl.runs.plan import of_model, of_ranks, plan
from mpidl.runs.search import BETTER, KEYS, Search, Topology, larger_portion, speed, unpredictable
from mpidl.wire import FORMATS

#: Roles that every proposal has or names otherwise.
COMMON = ("coordinator", "server", "worker", "standby")
#: The most ranks for which a speed is predicted.
MOST = 1024
#: Largest fraction of a step for exchanges that count as short.
SHORT = 0.2


def propose(config: Config, ranks: int) -> dict[str, Any]:
    """Propose the fastest topology for a number of ranks.

    Raise UsageError if the job can't be built, or there are too few or too many ranks.

    Parameters
    ----------
    config : Config
        Its ``topology`` counts only if no speed can be predicted.
    ranks : int

    Returns
    -------
    dict
        The result of `mpidl.runs.plan.plan` for the proposed topology, and: proposal, a dict with servers, replicas,
        partitions, stages and micro_batches; settings, the keys that choose it; why, a list of lines; and candidates, a
        dict for each topology that was simulated, with the same numbers and settings, roles (number of ranks by role),
        memory (bytes of the largest rank), fits (whether the nodes have enough), gradient_seconds, and the fields of
        `mpidl.runs.prediction.Prediction`. There are none if no speed can be predicted.
    """
    job = build(config)
    if (reason := unpredictable(job, ranks, MOST)) is not None:
        described, section = plan(config, ranks), config.topology
        workers = sum(each["role"].startswith("worker") for each in described["roles"])
        counts = (config.servers, workers // section.partitions, section.partitions, section.stages)
        proposal = dict(zip(KEYS, (*counts, section.pipeline["micro_batches"]), strict=True))
        return described | {"proposal": proposal, "candidates": [], "why": [f"no speed is predicted: {reason}"]}
    found = Search(job, ranks)
    topology, best = found.best()
    cut = topology.cut.plan
    return of_model(job, cut) | of_ranks(job, found.nodes, topology.roles, cut) | {
        "proposal": {key: best[key] for key in KEYS},
        "settings": best["settings"],
        "candidates": found.compared,
        "why": list(_why(found, job, topology, best)),
    }  # fmt: skip


def _why(found: Search, job: Job, topology: Topology, best: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines with the basis of the predictions, and the reasons for this candidate."""
    times, data = found.times, job.config.data
    if times.cores is not None:
        place = f"all ranks on one node of {counted(times.cores, 'core')}"
    else:
        place = f"{counted(times.ranks_per_node, 'rank')} on each node"
    yield f"figures: {found.durations}; {place}"
    yield (
        f"a step takes {duration(best['step_seconds'])}, a gradient alone {duration(best['gradient_seconds'])}; "
        f"each replica fetches {quantity(best['fetched'], 'B')} and pushes {quantity(best['pushed'], 'B')}"
    )
    if best["partitions"] > 1:
        yield f"{duration(found.cuts[0].seconds)} on one rank, {_cut(best)}"
    if best["load"]:
        carried = quantity(best["load"] * times.bandwidth, "B/s")
        yield f"the busiest network card carries {carried}, {100 * best['load']:.0f} % of its capacity"
    if times.cores is None and (portion := larger_portion(speed(best), data)):
        yield (
            f"replicas take {speed(best) / data.portion:.0f} portions a second, and the coordinator hands out about "
            f"{search.TICKETS}: give data.portion = {portion}"
        )
    if not best["fits"]:
        yield "no topology fits the memory of these nodes: take fewer ranks on each, or a smaller model"
    algorithm = job.algorithm
    exchanges = best["load"] and algorithm.exchange is Exchange.SERVERS
    if exchanges and {algorithm.wire, algorithm.wire_fetch} == {"fp32"}:
        yield _wire_format(found, job, topology, best)


def _wire_format(found: Search, job: Job, topology: Topology, best: Mapping[str, Any]) -> str:
    """Recommend the least lossy wire format with which exchanges are short, else the fastest."""
    speeds, exchanging = {}, {}
    for name in FORMATS:
        encoded = best
        if name != "fp32":
            encoded = asdict(found.simulate(topology, replace(job.algorithm, wire=name, wire_fetch=name)))
        speeds[name] = speed(encoded)
        exchanging[name] = 1 - best["gradient_seconds"] / encoded["step_seconds"]
        if exchanging[name] <= SHORT:
            break
    else:
        name = next(name for name, each in speeds.items() if BETTER * each >= max(speeds.values()))
    gain = ""
    if name != "fp32":
        percent = round(100 * (speeds[name] / speed(best) - 1))
        change = f"{abs(percent)} % {'more' if percent > 0 else 'fewer'}" if percent else "as many"
        gain = f" would give {change} samples/s"
    share = f"exchanges take {100 * exchanging[name]:.0f} % of a step"
    return f'wire format: "{name}" (algorithm.wire and wire_fetch){gain}; {share}'


def _cut(topology: Mapping[str, Any]) -> str:
    found = f"cut into {counted(topology['partitions'], 'partition')}"
    if topology["stages"] == 1:
        return found
    return f"{found} in {topology['stages']} stages, a minibatch in {topology['micro_batches']} micro-batches"


def apply(proposed: Mapping[str, Any], path: Path) -> str:
    """Write the proposal into the configuration's file, and return a line about it.

    Raise UsageError if there is no proposal, or the file can't be changed.
    """
    if not proposed["candidates"]:
        raise UsageError(f"--apply: {proposed['why'][0]}")
    servers = proposed["proposal"]["servers"]
    changed = {"servers": servers} if servers else {}
    changed |= {key.removeprefix("topology."): value for key, value in proposed["settings"].items()}
    if not changed:
        return f"{path}: unchanged, {proposed['algorithm']} has no servers"
    toml.change(path, "topology", changed)
    return f"{path}: " + ", ".join(f"topology.{key} = {str(value).lower()}" for key, value in changed.items())


def as_text(proposed: Mapping[str, Any]) -> str:
    """Return the candidates, the proposal and its reasons as text for people."""
    candidates, proposal = proposed["candidates"], proposed["proposal"]
    lines = ["", *titled([_cells(each, candidates, proposal) for each in candidates]), ""] if candidates else []
    kinds = Counter(each["role"].split()[0] for each in proposed["roles"])
    numbers = {key.removesuffix("s"): proposal[key] for key in ("servers", "replicas")}
    numbers |= {kind: number for kind, number in kinds.items() if kind not in COMMON}
    *others, last = (counted(number, kind) for kind, number in numbers.items())
    way = f", {_cut(proposal)}" if proposal["partitions"] > 1 else ""
    lines += [f"proposed: {', '.join(others)} and {last}{way}", *(f"- {line}" for line in proposed["why"])]
    return "\n".join(lines)


def _cells(
    each: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]], proposal: Mapping[str, int]
) -> dict[str, str]:
    mark = "proposed" if all(each[key] == proposal[key] for key in KEYS) else ""
    return {
        **{key: str(each[key]) for key in ("servers", "replicas", "partitions", "stages")},
        **other_roles(each, candidates),
        "largest rank": quantity(each["memory"], "B"),
        "fetched": quantity(each["fetched"], "B"),
        "pushed": quantity(each["pushed"], "B"),
        "step": duration(each["step_seconds"]),
        "samples/s": f"{speed(each):.0f}",
        "": mark if each["fits"] else "too large",
    }


def other_roles(topology: Mapping[str, Any], topologies: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the numbers of a topology's ranks in roles that only some of the topologies have, by the roles' plural."""
    kinds = dict.fromkeys(kind for each in topologies for kind in each["roles"] if kind not in COMMON)
    return {f"{kind}s": str(topology["roles"].get(kind, 0)) for kind in kinds}
