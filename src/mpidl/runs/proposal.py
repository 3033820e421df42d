"""Proposals for a job: its fastest topology, ``mpidl plan CONFIG --ranks N``, and nodes to book, ``--nodes 1,2,4``."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import Any

from mpidl.algorithms import Exchange
from mpidl.config import Config, toml
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.durations import DEVIATION, JobDurations
from mpidl.job.job import Job
from mpidl.job.placed import place
from mpidl.report.text import counted, duration, quantity, titled
from mpidl.runs import search
from mpidl.runs.plan import of_model, of_ranks, plan
from mpidl.runs.search import BETTER, KEYS, Search, Topology, larger_portion, unpredictable
from mpidl.wire import FORMATS

#: Roles that every proposal has or names otherwise.
COMMON = ("coordinator", "server", "worker", "standby")
#: The most ranks for which a speed is predicted, and the most on several numbers of nodes.
MOST, MOST_BOOKED = 1024, 20_000
#: Largest fraction of a step for exchanges that count as short.
SHORT = 0.2
#: Node hours, relative to the cheapest number of nodes, that a faster one may cost.
WORTH = 1.5
#: Least shares of its time in which what limits a job is busy: gradients, and a network card or a server.
COMPUTING, BUSY = 0.85, 0.75
#: Fewest minibatches of a replica in a run; with fewer, another replica shortens the run by less than its speed.
FEW = 20


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
        `mpidl.runs.search.Prediction`. There are none if no speed can be predicted.
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
        "candidates": [predicted for _, predicted in found.compared],
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
    rate = best["samples_per_second"]
    if times.cores is None and (portion := larger_portion(rate, data)):
        yield (
            f"replicas take {rate / data.portion:.0f} portions a second, and the coordinator hands out about "
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
        speeds[name] = encoded["samples_per_second"]
        exchanging[name] = 1 - best["gradient_seconds"] / encoded["step_seconds"]
        if exchanging[name] <= SHORT:
            break
    else:
        name = next(name for name, each in speeds.items() if BETTER * each >= max(speeds.values()))
    gain = ""
    if name != "fp32":
        percent = round(100 * (speeds[name] / speeds["fp32"] - 1))
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
    cells = [
        {
            **{key: str(each[key]) for key in ("servers", "replicas", "partitions", "stages")},
            **_other_roles(each, candidates),
            "largest rank": quantity(each["memory"], "B"),
            "fetched": quantity(each["fetched"], "B"),
            "pushed": quantity(each["pushed"], "B"),
            "step": duration(each["step_seconds"]),
            "samples/s": f"{each['samples_per_second']:.0f}",
            "": ("proposed" if proposal.items() <= each.items() else "") if each["fits"] else "too large",
        }
        for each in candidates
    ]
    lines = ["", *titled(cells), ""] if candidates else []
    kinds = Counter(each["role"].split()[0] for each in proposed["roles"])
    numbers = {key.removesuffix("s"): proposal[key] for key in ("servers", "replicas")}
    numbers |= {kind: number for kind, number in kinds.items() if kind not in COMMON}
    *others, last = (counted(number, kind) for kind, number in numbers.items())
    way = f", {_cut(proposal)}" if proposal["partitions"] > 1 else ""
    lines += [f"proposed: {', '.join(others)} and {last}{way}", *(f"- {line}" for line in proposed["why"])]
    return "\n".join(lines)


def _other_roles(topology: Mapping[str, Any], topologies: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the numbers of a topology's ranks in roles that only some of the topologies have, by the roles' plural."""
    kinds = dict.fromkeys(kind for each in topologies for kind in each["roles"] if kind not in COMMON)
    return {f"{kind}s": str(topology["roles"].get(kind, 0)) for kind in kinds}


def book(
    config: Config, nodes: Sequence[int], ranks_per_node: int, overrides: Sequence[str] = (), name: str = "CONFIG"
) -> dict[str, Any]:
    """Predict a job on several numbers of nodes, each with its fastest topology.

    Parameters
    ----------
    config : Config
    nodes : sequence of int
        Numbers of nodes.
    ranks_per_node : int
        Number of ranks on each node, each with a core of its own.
    overrides : sequence of str
        What replaces values of the configuration's file, such as ``"topology.servers=2"``; it stays as it is.
    name : str
        The configuration's file, for the commands in the result.

    Returns
    -------
    dict
        name, algorithm and ranks_per_node; samples, from the beginning of the run to its end; why, lines about the
        basis of the figures; best, the number of nodes to book, and command, which books them; and rows, a dict for
        each number of nodes with nodes, ranks, servers, replicas, partitions, stages, roles (number of ranks by role),
        settings (keys that choose the topology), samples_per_second, hours to the end of training, efficiency (against
        ranks that all compute gradients as fast as one alone), node_hours, limit (what limits the speed), and fits
        (whether nodes have enough memory).

    Raises
    ------
    UsageError
        The job can't be built, there are too few ranks, or no speed can be predicted.
    """
    virtual = replace(config.virtual, ranks_per_node=ranks_per_node, cores=None)
    if isinstance(virtual.compute, float | int):
        # Gradients of exactly equal durations would exchange all at the same time.
        virtual = replace(virtual, compute=f"jitter:{virtual.compute}:{DEVIATION}")
    job = build(replace(config, virtual=virtual))
    if (reason := unpredictable(job, max(nodes) * ranks_per_node, MOST_BOOKED, name)) is not None:
        raise UsageError(f"--nodes: no speed is predicted: {reason}")
    schedule, data = place(job, 1).schedule, job.dataset.train.samples
    epochs, rest = divmod(schedule.steps, schedule.portions.steps_per_epoch)
    samples = epochs * data + rest * config.data.batch
    rows, searches, given = [], {}, {each.partition("=")[0].strip() for each in overrides}
    for number in sorted(set(nodes)):
        try:
            searches[number] = Search(job, number * ranks_per_node, given)
            rows.append(_row(searches[number], job, number, samples, schedule.steps))
        except UsageError as error:
            raise UsageError(f"--nodes {number} --ranks-per-node {ranks_per_node}: {error}") from None
    fitting = [row for row in rows if row["fits"]] or rows
    cheapest = min(row["node_hours"] for row in fitting)
    best = min((row for row in fitting if row["node_hours"] <= WORTH * cheapest), key=lambda row: row["hours"])
    return {
        "name": config.run.name,
        "algorithm": config.algorithm.name,
        "ranks_per_node": ranks_per_node,
        "samples": samples,
        "rows": rows,
        "best": best["nodes"],
        "command": _command(best, ranks_per_node, name, overrides),
        "why": list(_basis(searches[best["nodes"]], job, best, schedule.steps, name)),
    }


def cores(config: Config) -> int:
    """Return the number of cores of a node: of the one that was measured, or else of this one."""
    node = JobDurations.known(config.virtual).measured.node
    return len(os.sched_getaffinity(0)) if node is None else node.cores


def _row(found: Search, job: Job, nodes: int, samples: int, steps: int) -> dict[str, Any]:
    best, ranks = found.best()[1], len(found.nodes)
    rate, limit = best["samples_per_second"], _limit(best)
    if nodes > 1 and (portion := larger_portion(rate, job.config.data)):
        rate = float(search.TICKETS * job.config.data.portion)
        limit = f"the coordinator: set data.portion = {portion}"
    # With few minibatches for each, some replicas compute one more than others.
    seconds = max(samples / rate, ceil(steps / best["replicas"]) * best["step_seconds"])
    alone = ranks * job.config.data.batch / found.cuts[0].seconds
    return {
        "nodes": nodes,
        "ranks": ranks,
        **{key: best[key] for key in (*KEYS, "roles", "settings", "step_seconds", "fits")},
        "samples_per_second": rate,
        "hours": seconds / 3600,
        "efficiency": rate / alone,
        "node_hours": nodes * seconds / 3600,
        "limit": limit if best["fits"] else "memory: no topology fits",
    }


def _limit(found: Mapping[str, Any]) -> str:
    computing = found["gradient_seconds"] / found["step_seconds"]
    if computing >= COMPUTING:
        return "computing"
    if found["load"] >= max(BUSY, found["busy"]):
        return "the network of a server's node"
    if found["busy"] >= BUSY:
        return "the servers"
    return f"exchanges: {100 * (1 - computing):.0f} % of a step"


def _command(best: Mapping[str, Any], ranks_per_node: int, name: str, overrides: Sequence[str]) -> str:
    """Return the command that submits a job, with a quarter of its hours and ten minutes to spare."""
    minutes = 10 * ceil((75 * best["hours"] + 10) / 10)
    words = ["mpidl", "submit", name, "--nodes", str(best["nodes"]), "--ranks-per-node", str(ranks_per_node)]
    words += ["--time", f"{minutes // 60}:{minutes % 60:02}:00"]
    settings = [f"{key}={str(value).lower()}" for key, value in best["settings"].items()]
    for each in (*settings, *(each for each in overrides if not each.strip().startswith("virtual."))):
        words += ["--set", each]
    return shlex.join(words)


def _basis(found: Search, job: Job, best: Mapping[str, Any], steps: int, name: str) -> Iterator[str]:
    """Yield lines about the basis of the figures, and about what they leave out."""
    yield f"figures: {found.durations}"
    yield (
        f"a gradient takes {duration(found.cuts[0].seconds)}; a network card carries "
        f"{quantity(found.times.bandwidth, 'B/s')} in each direction, and a message takes "
        f"{duration(found.times.latency.mean)}"
    )
    yield "efficiency: against ranks that all compute gradients; times: without start-up and evaluations"
    if steps < FEW * best["replicas"]:
        yield f"{steps} minibatches are few for {best['replicas']} replicas: gradients will be of old parameters"
    config = job.config.run
    if config.target is not None or config.patience is not None:
        yield "the run may end earlier, by run.target or run.patience"
    yield f"speed is not accuracy: `mpidl simulate {name} --replicas {best['replicas']}` predicts that"


def booking_as_text(booked: Mapping[str, Any]) -> str:
    """Return a booking as text for people."""
    rows = booked["rows"]
    cut = any(row["partitions"] > 1 for row in rows)
    best = next(row for row in rows if row["nodes"] == booked["best"])
    cells = [
        {
            "nodes": str(row["nodes"]),
            "servers": str(row["servers"]),
            **_other_roles(row, rows),
            "replicas": str(row["replicas"]),
            "partitions": str(row["partitions"]) if cut else "",
            "samples/s": f"{row['samples_per_second']:.0f}",
            "time": duration(3600 * row["hours"]),
            "efficiency": f"{100 * row['efficiency']:.0f} %",
            "node time": duration(3600 * row["node_hours"]),
            "limited by": row["limit"],
            "": "best" if row is best else "",
        }
        for row in rows
    ]
    cost = f"{duration(3600 * best['hours'])}, {duration(3600 * best['node_hours'])} of node time"
    lines = [
        f"{booked['name']}: {booked['samples']:,} samples to the end; {booked['ranks_per_node']} ranks on each node",
        "",
        *titled(cells),
        "",
        f"book {counted(best['nodes'], 'node')}: {cost}; the fastest that costs at most {WORTH:g} times the node time "
        "of the cheapest",
        f"- {booked['command']}",
        *(f"- {line}" for line in booked["why"]),
    ]
    return "\n".join(lines)
