"""A run on the ranks of an MPI job: all agree to begin, take their roles, and end together."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mpi4py import MPI

from mpidl.algorithms import Exchange
from mpidl.config import Config
from mpidl.engines.mpi.group import MpiGroup
from mpidl.errors import MpidlError, RankError, UsageError
from mpidl.job.cutting import cut, take_part
from mpidl.job.description import of_data, of_model, of_samples
from mpidl.job.job import Job
from mpidl.job.memory import check_memory
from mpidl.job.restoring import identify
from mpidl.job.slices import held_shards
from mpidl.launch import marks
from mpidl.parameters import Held
from mpidl.partition.network import CutNetwork
from mpidl.partition.section import Section
from mpidl.report.recorder import first_failure, record_event
from mpidl.report.results import warn_unchanged
from mpidl.rma.nodes import neighbours
from mpidl.rma.shared_samples import SharedSamples
from mpidl.rma.shm_space import check_window_space
from mpidl.rma.transport import Transport
from mpidl.runs.agreement import check_same, together
from mpidl.runs.common_values import agree_on_initial_values, share_trained
from mpidl.runs.features import others
from mpidl.runs.rank_role import RankRole
from mpidl.topology.roles import Roles, assign, check_number
from mpidl.transport.capacity import Capacity

T = TypeVar("T")


def run(config: Config, build: Callable[[], Job], comm: MPI.Intracomm | None = None) -> dict[str, Any]:
    """Run a job on all ranks of a communicator; collective.

    Parameters
    ----------
    config : Config
    build : callable
        Makes the job; called on every rank.
    comm : MPI.Intracomm, optional
        MPI.COMM_WORLD by default.

    Returns
    -------
    dict
        The run's summary, on every rank.

    Raises
    ------
    MpidlError, UsageError
        A rank failed before the training began. Every rank raises the same error.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    nodes = _nodes(comm)
    if comm.rank == 0:
        marks.tell(marks.READY)
        if len(set(nodes)) > 1 and (text := marks.nodes_as_text(nodes)) is not None:
            marks.tell(f"{marks.NODES} {text}")
    partitions, hosts = config.topology.partitions, tuple(comm.allgather(MPI.Get_processor_name()))
    roles = replace(assign(nodes, config.servers, partitions, relay=config.topology.relay), hosts=hosts)
    check_number(comm.size, config.servers, partitions, len(roles.others))
    job = _agree(comm, roles, build)
    with _share_samples(comm, roles, job):
        return _train(comm, roles, job, nodes)


def _train(comm: MPI.Intracomm, roles: Roles, job: Job, nodes: list[int]) -> dict[str, Any]:
    """Train, whoever has shared the samples; see `run`."""
    config, partitions = job.config, job.config.topology.partitions
    _compare(comm, roles, job)
    _check_nodes(config, nodes)
    if job.checkpoint is None:
        _agree(comm, roles, lambda: agree_on_initial_values(comm, job.original))
    job.begin(len(roles.replicas))
    plan = _agree(comm, roles, lambda: cut(job, partitions)) if partitions > 1 else None
    _agree(comm, roles, lambda: _check_memory_of_node(job, roles, nodes, comm.rank))
    held = held_shards(job, len(roles.servers))
    group = None if plan is None else _join_replica(comm, roles)
    if plan is not None and group is not None:
        take_part(job, plan, group)
    role = RankRole(comm, roles, job, held, group)
    _agree(comm, roles, lambda: role.choose_device(nodes))
    _agree(comm, roles, role.rehearse, in_groups=partitions > 1)
    job.know_outputs(comm.allreduce(role.outputs, op=MPI.MAX))
    capacity = _capacity(job, held)
    routes = others.routes(roles, capacity)
    _agree(comm, roles, lambda: check_window_space(comm, routes, config.topology.transport))
    _agree(comm, roles, role.open_files)
    with _failing_together(comm, roles):
        transport = Transport(comm, roles, capacity, staging=role.staging, way=config.topology.transport, routes=routes)
    try:
        _agree(comm, roles, lambda: role.prepare(transport), in_groups=partitions > 1, before=transport.quiesce)
    except MpidlError:
        role.discard_files()
        raise
    with _failing_together(comm, roles, job.directory), transport:
        own = role.work()
        transport.quiesce()
        summary: dict[str, Any] = comm.bcast(own, root=roles.coordinator)
        role.unbind()
        changed = comm.allreduce(role.has_changed(), op=MPI.LOR)
    if job.shared:
        trained = list(zip(roles.replicas[0], job.slices, strict=True))
        share_trained(comm, job.original, job.layout, trained, job.part.parameters)
    if group is not None:
        assert isinstance(job.part, CutNetwork | Section)
        job.part.unbind()
        group.free()
        group.communicator.Free()
    if comm.rank == roles.coordinator and not changed:
        warn_unchanged(summary)
    return summary


def _join_replica(comm: MPI.Intracomm, roles: Roles) -> MpiGroup | None:
    """Return the ranks of this rank's replica; None for a rank that is in none."""
    mine = next(((number, each) for number, each in enumerate(roles.replicas) if comm.rank in each), None)
    if mine is None:
        comm.Split(MPI.UNDEFINED)
        return None
    number, replica = mine
    own: Any = comm.Split(number, replica.index(comm.rank))
    return MpiGroup(own)


def _capacity(job: Job, held: list[Held]) -> Capacity:
    shared = 1 + len(job.states) if job.algorithm.exchange is Exchange.SHARED_MEMORY else 0
    return Capacity(
        [each.range for each in held],
        job.dtype,
        wire=job.algorithm.encoding(),
        wire_fetch=job.algorithm.fetch_encoding(),
        within_nodes=job.config.run.deterministic,
        evaluations=max(1, job.schedule.epochs),
        figures=len(job.figures.names),
        sums=len(job.evaluated) * job.figures.size,
        units=job.units,
        shared_vectors=shared,
        statistics=job.statistics,
        held=held,
        slices=job.slices,
    )


def _check_memory_of_node(job: Job, roles: Roles, nodes: list[int], rank: int) -> None:
    """Check that what the ranks of this node hold fits into its memory."""
    here = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    servers = sum(other in roles.servers for other in here)
    others_here = sum(other in roles.others for other in here)
    workers = len(here) - servers - others_here - (roles.coordinator in here)
    fetchers = {rank for partition in range(len(job.slices)) for rank in roles.fetchers(partition)}
    pushing = len(fetchers.intersection(here)) - others_here
    encodes, follows = job.algorithm.encoding() is not None, job.algorithm.fetch_encoding() is not None
    # A server has a copy for each rank that fetches differences. Whoever encodes keeps what that leaves out.
    of_servers = (1 + len(job.states) + follows * len(roles.fetchers())) * servers / max(1, len(roles.servers))
    of_workers = (2 * workers + (encodes + follows) * pushing) / len(job.slices)
    # Other ranks that push have what they fetch, what they show, two sums, and the residuals of two rings.
    of_others = (4 + 2 * encodes) * others_here
    check_memory(job, of_workers + of_others + of_servers, workers)


def _nodes(comm: MPI.Intracomm) -> list[int]:
    """Return for each rank the lowest rank of its node."""
    node = neighbours(comm)
    lowest = node.allreduce(comm.rank, op=MPI.MIN)
    node.Free()
    return comm.allgather(lowest)


def _check_nodes(config: Config, nodes: list[int]) -> None:
    if config.algorithm.exchange is Exchange.SHARED_MEMORY and len(set(nodes)) > 1:
        raise UsageError(
            f"algorithm.name: {config.algorithm.name}'s replicas share one node's memory, "
            f"the ranks are on {len(set(nodes))} nodes"
        )


def _share_samples(comm: MPI.Intracomm, roles: Roles, job: Job) -> contextlib.AbstractContextManager[Any]:
    """Let the workers of each node, or of all nodes, read the samples that are kept in memory, once for all of them."""
    if not job.kept:
        return contextlib.nullcontext()
    trains = any(comm.rank in ranks for ranks in roles.replicas)
    kept = [split.cached for split in job.kept]
    return SharedSamples(
        comm,
        trains,
        kept,
        lambda read: _agree(comm, roles, read),
        lambda: _failing_together(comm, roles, job.directory),
    )


def _compare(comm: MPI.Intracomm, roles: Roles, job: Job) -> None:
    """Check that all ranks have the same model and data; those that don't train read no samples."""
    check_same("model", of_model(job.original), comm.rank, comm.allgather)
    sizes = check_same("data", of_data(job.given), comm.rank, comm.allgather)
    trains = any(comm.rank in ranks for ranks in roles.replicas)
    samples = _agree(comm, roles, lambda: of_samples(job.given) if trains else None)
    identify(job, {**sizes, **check_same("data", samples, comm.rank, comm.allgather)})


def _agree(
    comm: MPI.Intracomm,
    roles: Roles,
    action: Callable[[], T],
    in_groups: bool = False,
    before: Callable[[], None] = lambda: None,
) -> T:
    """Carry out an action on every rank; if it fails on some, raise the first one's error on all.

    Each rank calls `before` when it is done, before it waits for the others.

    In an action of groups, the ranks of a replica wait for each other: what isn't a fault of the user, which all ranks
    meet, ends the job.
    """

    def guarded() -> T:
        with _failing_together(comm, roles, but=(UsageError,) if in_groups else (MpidlError, MemoryError)):
            return action()

    def gather(value: Any) -> list[Any]:
        before()
        return comm.allgather(value)

    return together(guarded, (comm.rank, gather), lambda rank: f"rank {rank}, {roles.role(rank)}{roles.place(rank)}")


@contextlib.contextmanager
def _failing_together(
    comm: MPI.Intracomm, roles: Roles, run: Path | None = None, but: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """End the whole job if this rank raises an error that the others don't know of; name rank, role and cause.

    If the run's directory is given, the failure is recorded in its events, with a traceback, and of several ranks that
    fail at a time only the first says so. Errors of the types `but` are only raised.
    """
    try:
        yield
    except but:
        raise
    except BaseException as error:
        cause = str(error) if isinstance(error, MpidlError) else f"{type(error).__name__}: {error}"
        rank = error.rank if isinstance(error, RankError) else comm.rank
        cause, role = " ".join(cause.split()), roles.role(rank)
        first = run is None or first_failure(run)
        if first:
            print(f"mpidl: rank {rank} ({role}){roles.place(rank)} failed: {cause}", file=sys.stderr, flush=True)
        if run is not None:
            record_event(
                run, "failure", rank, role, host=roles.hosts[rank], cause=cause, traceback=traceback.format_exc()
            )
        if os.environ.get("MPIDL_DEBUG"):
            traceback.print_exc()
        # The line needs time to pass through the launcher before the launcher ends the job.
        time.sleep(0.2 if first else 1.0)
        comm.Abort(1)
