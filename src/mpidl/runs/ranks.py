"""A run on the ranks of an MPI job: they agree on the job stage by stage, train, and end together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from mpidl.algorithms import Exchange
from mpidl.config import Config
from mpidl.data import CachedSplit
from mpidl.engines.mpi.group import MpiGroup
from mpidl.errors import MpidlError, UsageError
from mpidl.history import Run
from mpidl.jit import COMPILATION
from mpidl.job.checkpoints import identify, load_saved
from mpidl.job.checks import of_data, of_model, of_samples
from mpidl.job.footprint import capacity_of, check_memory, footprints
from mpidl.job.job import Job
from mpidl.job.placed import PlacedJob, place
from mpidl.job.planning import cut
from mpidl.job.ready import Interim, LocalModel, ReadyJob
from mpidl.job.rehearsal import count_outputs, rehearse_own
from mpidl.job.takeover import fixed_by_job
from mpidl.launch.fault_points import fault_point
from mpidl.launch.output import say
from mpidl.metrics.figures import Figures
from mpidl.parameters import Range, moves
from mpidl.partition.group import CutModel
from mpidl.report.reporter import Reporter
from mpidl.report.summary import Summary
from mpidl.report.text import warn_unchanged
from mpidl.rma.shared_samples import SharedSamples
from mpidl.rma.staging import Staging
from mpidl.rma.transport import Transport, check_window_space
from mpidl.runs.agreement import check_same
from mpidl.runs.common_values import agree_on_initial_values, share_kept, share_trained
from mpidl.runs.features import intermediaries, mirrors, tracing
from mpidl.runs.process import stopping, undisturbed
from mpidl.runs.rank_role import begun_role, open_run, own_model, play_taken_over, staging_of
from mpidl.runs.world import World
from mpidl.sparse.saved import give_rows
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import steps
from mpidl.topology.takeover import Fixed
from mpidl.transport.routes import Routes


def run(config: Config, build: Callable[[], Job], comm: MPI.Intracomm) -> Summary:
    """Run a job on all ranks of a communicator; collective.

    Parameters
    ----------
    config : Config
    build : callable
        Makes the job; called on every rank.
    comm : MPI.Intracomm

    Returns
    -------
    dict
        The run's summary, on every rank.

    Raises
    ------
    MpidlError, UsageError
        A rank failed before the training began. Every rank raises the same error.
    """
    world = World(comm, config)
    job = world.agree(build)
    world.survival.fixed |= fixed_by_job(job)
    with contextlib.ExitStack() as shared:
        shared.enter_context(_share_samples(world, job))
        job = _compare(world, job)
        placed = _place(world, job)
        group = _join_replica(world, placed)
        local = world.agree(lambda: own_model(world, placed, group))
        staging = world.agree(lambda: staging_of(world, job, local))
        figures = _agree_on_figures(world, placed, local)
        routes = _find_room(world, placed, figures)
        reporter, directory, token = world.agree(lambda: open_run(world, placed, local.device))
        world.directory = directory
        with _interim(world, placed, routes, directory, token) as interim:
            ready = ReadyJob(placed, local, figures, directory, token, interim)
            summary = _train(world, ready, routes, staging, reporter)
            if interim is not None:
                interim.discard()
        if world.survival.died:
            shared.pop_all()  # Nothing can be freed together.
        else:
            _share_trained(world, ready)
            _leave_replica(local, group)
    return summary


def _share_samples(world: World, job: Job) -> contextlib.AbstractContextManager[Any]:
    """Let the workers of each node, or of all nodes, read the samples that are kept in memory, once for all of them."""
    cached = [split.cached for split in job.given.splits.values() if isinstance(split, CachedSplit)]
    if not cached:
        return contextlib.nullcontext()
    return SharedSamples(world.comm, world.trains, cached, world.agree, world.failing_together)


def _compare(world: World, job: Job) -> Job:
    """Check that all ranks have the same model and data, and give all the same first values.

    Ranks that don't train read no samples.
    """
    rank, gather = world.rank, world.comm.allgather
    check_same("model", of_model(job.original), rank, gather)
    sizes = check_same("data", of_data(job.given), rank, gather)
    samples = world.agree(lambda: of_samples(job.given) if world.trains else None)
    job = identify(job, {**sizes, **check_same("data", samples, rank, gather)})
    nodes = len(set(world.nodes))
    if job.algorithm.exchange is Exchange.SHARED_MEMORY and nodes > 1:
        raise UsageError(
            f"algorithm.name: {job.algorithm.name}'s replicas share one node's memory, the ranks are on {nodes} nodes"
        )
    if job.checkpoint is None:
        servers = world.roles.servers if job.config.tables.first_values == "weights" else ()
        world.agree(lambda: agree_on_initial_values(world.comm, job.original, servers))
    return job


def _place(world: World, job: Job) -> PlacedJob:
    """Cut the model, place the job on the replicas, and check that it fits into the memory of each node."""
    plan = world.agree(lambda: cut(job, job.config.topology.partitions))
    placed = place(job, len(world.roles.replicas), plan)
    roles, node = world.roles, world.nodes[world.rank]

    def check() -> None:
        _ = placed.samplers
        capacity = capacity_of(placed, len(roles.servers), Figures(job.metrics))
        found = zip(footprints(placed, intermediaries.routes(roles, capacity)), world.nodes, strict=True)
        check_memory(placed, [each for each, other in found if other == node])

    world.agree(check)
    return placed


def _find_room(world: World, placed: PlacedJob, figures: Figures) -> Routes:
    """Return the routes between windows for which each node's shared memory has room.

    If it is too small for all that servers keep, no other process can take over their ranks.
    """
    capacity, way = capacity_of(placed, len(world.roles.servers), figures), placed.job.config.topology.transport
    if capacity.kept:
        routes = intermediaries.routes(world.roles, capacity)
        try:
            world.agree(lambda: check_window_space(world.comm, routes, way))
        except MpidlError:
            world.survival.fixed |= Fixed(servers="the node's shared memory has no room for the state of the rule")
        else:
            return routes
    routes = intermediaries.routes(world.roles, replace(capacity, kept=()))
    world.agree(lambda: check_window_space(world.comm, routes, way))
    return routes


def _interim(
    world: World, placed: PlacedJob, routes: Routes, directory: Path, token: str
) -> contextlib.AbstractContextManager[Interim | None]:
    """Return where interim checkpoints are kept, if the run makes any."""
    every, rank = placed.job.config.topology.mirror, world.rank
    own = 0 if every is None else footprints(placed, routes)[rank].checkpoint
    return mirrors.begin(every, directory, token, own, rank, world.nodes, world.comm.allgather)


def _join_replica(world: World, placed: PlacedJob) -> MpiGroup | None:
    """Return the ranks of this rank's replica; None where models aren't cut, and for a rank that is in none."""
    if placed.plan is None:
        return None
    replicas = world.roles.replicas
    number = next((number for number, each in enumerate(replicas) if world.rank in each), None)
    if number is None:
        world.comm.Split(MPI.UNDEFINED)
        return None
    own: Any = world.comm.Split(number, replicas[number].index(world.rank))
    return MpiGroup(own)


def _leave_replica(local: LocalModel, group: MpiGroup | None) -> None:
    if group is not None:
        assert isinstance(local.host, CutModel)
        local.host.unbind()
        group.free()
        group.communicator.Free()


def _agree_on_figures(world: World, placed: PlacedJob, local: LocalModel) -> Figures:
    """Let user models compute once, and return the figures, which need the model's number of outputs."""
    job = placed.job

    def outputs() -> tuple[int, tuple[str, ...]]:
        if not world.trains:
            return 0, ()
        unseen = rehearse_own(job)
        if unseen and world.rank == world.workers[0]:
            say(unseen)
        return count_outputs(job, local)

    own = world.agree(outputs, in_groups=placed.plan is not None)
    counts, terms = zip(*world.comm.allgather(own), strict=True)
    return Figures(job.metrics, max(counts), max(terms, key=len))


def _train(
    world: World, ready: ReadyJob, routes: Routes, staging: Staging | None, reporter: Reporter | None
) -> Summary:
    """Play the ranks' roles to the end of the run, and return its summary."""
    comm, roles, topology = world.comm, world.roles, ready.job.config.topology
    trace = tracing.begin(world, ready.directory, ready.job.config.run.trace)
    fault_point("job-built")
    with world.failing_together():
        transport = Transport(
            comm, roles, routes.capacity, staging=staging, way=topology.transport, routes=routes,
            processes=world.survival.processes,
        )  # fmt: skip
    try:
        role = world.agree(
            lambda: begun_role(world, ready, transport, reporter),
            in_groups=topology.partitions > 1,
            before=transport.quiesce,
        )
    except MpidlError:
        if reporter is not None:
            reporter.recorder.discard()
        raise
    compilations = comm.gather(COMPILATION, root=roles.coordinator)
    if compilations is not None and (most := max(compilations, key=lambda each: each.lost)).lost:
        say(str(most))

    def play(rank: int, recovered: Callable[[int], None]) -> None:
        with world.failing_together():
            play_taken_over(world, ready, transport, role, trace, rank, recovered)

    with world.failing_together(), contextlib.ExitStack() as owned:
        owned.enter_context(transport)
        with undisturbed(), stopping(role.interrupt), world.survival.taking_over(play):
            fault_point("training-begins")
            trace.follow(role, transport)
            own = role.run()
            if role.left:
                trace.end(together=False)
                world.survival.end()
            fault_point("exit-ordered")
        with transport.turn.left():
            world.survival.join()
        if world.survival.died:
            trace.end(together=False)
            owned.pop_all()
            return _without_others(ready, transport)
        transport.quiesce()
        trace.end(together=True)
        summary: Summary = comm.bcast(own, root=roles.coordinator)
        role.unbind()
        changed = comm.allreduce(role.changed, op=MPI.LOR)
    if world.coordinates and not changed:
        warn_unchanged(summary)
    return summary


def _without_others(ready: ReadyJob, transport: Transport) -> Summary:
    """Return the summary of a run whose processes can't all communicate; give the model the trained parameters."""
    if ready.job.script.shared:
        layout, original = ready.placed.layout, ready.job.original
        values, whole = np.empty(layout.size, original.dtype), Range(0, layout.size)
        transport.read_present(values)
        for move in moves(layout, whole, original.layout, Range(0, original.layout.size)):
            move.copy(values, original.parameters)
        # What the first replica has kept, which may have had no process at the end, is in the last checkpoint.
        checkpoints = ready.directory / "checkpoints"
        load_saved(original, Checkpoint(checkpoints / str(steps(checkpoints)[-1])), 0)
    summary = Run(ready.directory).summary
    assert summary is not None, "the coordinator has written it"
    return cast("Summary", summary)


def _share_trained(world: World, ready: ReadyJob) -> None:
    """Give the model of every rank the trained parameters, if every rank is to have them."""
    placed = ready.placed
    if ready.job.script.shared:
        trained = list(zip(world.roles.replicas[0], placed.slices, strict=True))
        share_trained(world.comm, ready.job.original, placed.layout, trained, ready.local.host.parameters)
        share_kept(world.comm, ready.job.original, world.roles.replicas[0], ready.local.host)
        if ready.job.original.tables:
            checkpoints = ready.directory / "checkpoints"
            world.agree(lambda: give_rows(ready.job.original, Checkpoint(checkpoints / str(steps(checkpoints)[-1]))))
