"""How many nodes to book: ``mpidl plan CONFIG --nodes 1,2,4``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from mpidl.config import Config
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.durations import DEVIATION, JobDurations
from mpidl.job.job import Job
from mpidl.job.placed import place
from mpidl.report.text import counted, duration, quantity, titled
from mpidl.runs import search
from mpidl.runs.proposal import other_roles
from mpidl.runs.search import KEYS, Search, larger_portion, speed, unpredictable

#: The most ranks for which a speed is predicted.
MOST = 20_000
#: Node hours, relative to the cheapest number of nodes, that a faster one may cost.
WORTH = 1.5
#: Least shares of its time in which what limits a job is busy: gradients, and a network card or a server.
COMPUTING, BUSY = 0.85, 0.75
#: Fewest minibatches of a replica in a run; with fewer, another replica shortens the run by less than its speed.
FEW = 20


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
    if (reason := unpredictable(job, max(nodes) * ranks_per_node, MOST, name)) is not None:
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
    best = min((row for row in fitting if row["node_hours"] <= WORTH * cheapest), key=lambda row: float(row["hours"]))
    return {
        "name": config.run.name,
        "algorithm": config.algorithm.name,
        "ranks_per_node": ranks_per_node,
        "samples": samples,
        "rows": rows,
        "best": best["nodes"],
        "command": _command(best, ranks_per_node, name, overrides),
        "why": list(_why(searches[best["nodes"]], job, best, schedule.steps, name)),
    }


def cores(config: Config) -> int:
    """Return the number of cores of a node: of the one that was measured, or else of this one."""
    node = JobDurations.known(config.virtual).measured.node
    return len(os.sched_getaffinity(0)) if node is None else node.cores


def _row(found: Search, job: Job, nodes: int, samples: int, steps: int) -> dict[str, Any]:
    best, ranks = found.best()[1], len(found.nodes)
    rate, limit = speed(best), _limit(best)
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


def _why(found: Search, job: Job, best: Mapping[str, Any], steps: int, name: str) -> Iterator[str]:
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


def as_text(booked: Mapping[str, Any]) -> str:
    """Return a booking as text for people."""
    rows = booked["rows"]
    cut = any(row["partitions"] > 1 for row in rows)
    best = next(row for row in rows if row["nodes"] == booked["best"])
    cells = [
        {
            "nodes": str(row["nodes"]),
            "servers": str(row["servers"]),
            **other_roles(row, rows),
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
