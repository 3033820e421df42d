"""Proposing how ranks should share a job: ``mpidl plan CONFIG --ranks N``, and ``--apply``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import Any

from mpidl.algorithms import Exchange
from mpidl.algorithms.coordinated import Coordinated
from mpidl.config import Config, toml
from mpidl.config.sections import DataSection
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.job import Job
from mpidl.nn.capabilities import summaries
from mpidl.report.text import duration, quantity, table
from mpidl.runs.plan import of_cuts, of_model, of_ranks, plan
from mpidl.runs.search import BETTER, KEYS, Search, Topology, speed
from mpidl.wire import FORMATS

#: Roles that every proposal has or names otherwise.
COMMON = ("coordinator", "server", "worker", "standby")
#: The most ranks for which a speed is predicted.
MOST = 1024
#: Tickets for portions that a coordinator hands out to other nodes in a second; see ``benchmarks/coordinator.py``.
TICKETS = 5000
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
    reason = f"there are more than {MOST} ranks" if ranks > MOST else unpredictable(job, ranks)
    if reason is not None:
        described, section = plan(config, ranks), config.topology
        workers = sum(each["role"].startswith("worker") for each in described["roles"])
        counts = (config.servers, workers // section.partitions, section.partitions)
        micro_batches = section.pipeline["micro_batches"]
        proposal = dict(zip(KEYS, (*counts, section.stages, micro_batches), strict=True))
        return described | {"proposal": proposal, "candidates": [], "why": [f"no speed is predicted: {reason}"]}
    search = Search(job, ranks)
    topology, best = search.best()
    cut = topology.cut.plan
    described = of_ranks(job, search.nodes, topology.servers, cut, topology.section)
    return of_model(job) | ({} if cut is None else {"cuts": of_cuts(job, cut)}) | described | {
        "proposal": {key: best[key] for key in KEYS},
        "settings": topology.settings,
        "candidates": search.compared,
        "why": list(_why(search, job, topology, best)),
    }  # fmt: skip


def unpredictable(job: Job, ranks: int, name: str = "CONFIG") -> str | None:
    """Return the reason why the speed of a job, with a configuration's file, can't be predicted, if there is one."""
    if isinstance(job.algorithm, Coordinated):
        return f"the steps of {job.algorithm.name} depend on their results"
    section, layers = job.config.virtual, summaries(job.original)
    if section.compute is None and section.calibration is None and not any(each.operations for each in layers or ()):
        number, run = section.ranks_per_node or min(4, ranks), job.config.run.directory.with_name("measured")
        return (
            f"the operations of this model are unknown; `mpidl train {name} -n {number} --set run.steps={50 * number} "
            f"--set run.name={run.name}` on such a node measures its gradients: then add "
            f"--set virtual.calibration={run}, or give their seconds as virtual.compute"
        )
    return None


def _why(search: Search, job: Job, topology: Topology, best: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines with the basis of the predictions, and the reasons for this candidate."""
    times = search.times(best["servers"], best["replicas"])
    if times.cores is not None:
        place = f"all ranks on one node of {_count(times.cores, 'core')}"
    else:
        place = f"{_count(times.ranks_per_node, 'rank')} on each node"
    yield f"figures: {search.durations}; {place}"
    yield (
        f"a step takes {duration(best['step_seconds'])}, a gradient alone {duration(best['gradient_seconds'])}; "
        f"each replica fetches {quantity(best['fetched'], 'B')} and pushes {quantity(best['pushed'], 'B')}"
    )
    if best["partitions"] > 1:
        yield f"{duration(search.candidates.uncut.seconds)} on one rank, {_cut(best)}"
    if best["load"]:
        carried = quantity(best["load"] * times.bandwidth, "B/s")
        yield f"the busiest network card carries {carried}, {100 * best['load']:.0f} % of its capacity"
    if times.cores is None:
        yield from _tickets(best["samples_per_second"], job.config.data)
    if not best["fits"]:
        yield "no topology fits the memory of these nodes: take fewer ranks on each, or a smaller model"
    yield from _wire_format(search, job, topology, best)


def _tickets(samples_per_second: float, data: DataSection) -> Iterator[str]:
    """Yield a line that proposes larger portions if the coordinator can't hand out tickets as fast."""
    portions = samples_per_second / data.portion
    if portions > TICKETS:
        portion = ceil(2 * samples_per_second / TICKETS / data.batch) * data.batch
        yield (
            f"replicas take {portions:.0f} portions a second, and the coordinator hands out about {TICKETS}: "
            f"give data.portion = {portion}"
        )


def _wire_format(search: Search, job: Job, topology: Topology, best: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line that recommends the least lossy wire format with which exchanges are short, else the fastest."""
    algorithm = job.algorithm
    if not best["load"] or algorithm.exchange is not Exchange.SERVERS:
        return
    if {algorithm.wire, algorithm.wire_fetch} != {"fp32"}:
        return
    found: dict[str, Mapping[str, Any]] = {}
    for name in FORMATS:
        found[name] = best if name == "fp32" else {**best, **asdict(search.encoded(topology, name))}
        if _exchanging(found[name]) <= SHORT:
            break
    else:
        fastest = max(map(speed, found.values()))
        name = next(name for name, each in found.items() if BETTER * speed(each) >= fastest)
    gain = "" if name == "fp32" else f" would give {_against(found[name], best)}"
    share = 100 * _exchanging(found[name])
    yield f'wire format: "{name}" (algorithm.wire and wire_fetch){gain}; exchanges take {share:.0f} % of a step'


def _exchanging(topology: Mapping[str, Any]) -> float:
    """Return the fraction of a step that is not the gradient."""
    return 1 - float(topology["gradient_seconds"]) / float(topology["step_seconds"])


def _against(one: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    percent = round(100 * (one["samples_per_second"] / best["samples_per_second"] - 1))
    change = f"{abs(percent)} % {'more' if percent > 0 else 'fewer'}" if percent else "as many"
    unfit = "" if one["fits"] else ", and don't fit the memory"
    return f"{change} samples/s{unfit}"


def _cut(topology: Mapping[str, Any]) -> str:
    found = f"cut into {_count(topology['partitions'], 'partition')}"
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
    lines = []
    if proposed["candidates"]:
        lines += ["", *_candidate_table(proposed["candidates"], proposed["proposal"]), ""]
    proposal = proposed["proposal"]
    kinds = Counter(each["role"].split()[0] for each in proposed["roles"])
    numbers = {key: proposal[key] for key in ("servers", "replicas")}
    numbers |= {f"{kind}s": number for kind, number in kinds.items() if kind not in COMMON}
    *others, last = (_count(number, key.removesuffix("s")) for key, number in numbers.items())
    way = f", {_cut(proposal)}" if proposal["partitions"] > 1 else ""
    lines += [f"proposed: {', '.join(others)} and {last}{way}", *(f"- {line}" for line in proposed["why"])]
    return "\n".join(lines)


def _candidate_table(candidates: Sequence[Mapping[str, Any]], proposal: Mapping[str, int]) -> list[str]:
    keys, kinds = ("servers", "replicas", "partitions", "stages"), other_kinds(candidates)
    rows = [[*keys, *(f"{kind}s" for kind in kinds), "largest rank", "fetched", "pushed", "step", "samples/s", ""]]
    for each in candidates:
        numbers = [str(number) for number in (*(each[key] for key in keys), *(each["roles"].get(k, 0) for k in kinds))]
        sizes = [quantity(each[key], "B") for key in ("memory", "fetched", "pushed")]
        mark = "proposed" if all(each[key] == proposal[key] for key in KEYS) else ""
        mark = mark if each["fits"] else "too large"
        rows.append([*numbers, *sizes, duration(each["step_seconds"]), f"{speed(each):.0f}", mark])
    return table(rows, left=0)


def other_kinds(topologies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the roles of ranks in some of the topologies, without those that every topology has."""
    return list(dict.fromkeys(kind for each in topologies for kind in each["roles"] if kind not in COMMON))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
