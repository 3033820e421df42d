"""What a rank needs for its role: its device, its files, its shards, and the role itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpidl.device import Device, choose
from mpidl.engines.mpi.group import MpiGroup
from mpidl.errors import MpidlError
from mpidl.job.fill import fill, unfilled
from mpidl.job.job import Job
from mpidl.job.placed import PlacedJob
from mpidl.job.ready import LocalModel, ReadyJob, local_model
from mpidl.job.rehearsal import rehearse_shard
from mpidl.launch import marks
from mpidl.parameters import Held, Range
from mpidl.report.recorder import Recorder, origin
from mpidl.report.reporter import Reporter
from mpidl.rma.staging import Staging, is_direct
from mpidl.rma.transport import Transport
from mpidl.roles.coordinator import Coordinator
from mpidl.roles.role import Role, Standby
from mpidl.roles.server import Server
from mpidl.roles.worker import Worker
from mpidl.runs.features import intermediaries, sparse, tracing
from mpidl.runs.world import World
from mpidl.shards.shard import Shard
from mpidl.shards.state import PARAMETERS
from mpidl.storage.deltas import ShardFiles
from mpidl.survival.worker_recovery import WorkerRecovery


def own_model(world: World, placed: PlacedJob, group: MpiGroup | None) -> LocalModel:
    """Return this rank's model on its device; the ranks of a node that compute take its GPUs in turn."""
    device, servers, rank = placed.job.config.device, world.roles.servers, world.rank
    computing = {*world.workers, *(servers if device.shards else ())}
    number = sum(world.nodes[other] == world.nodes[rank] for other in computing if other < rank)
    if world.trains:
        # With servers, a replica's vectors stay on the device.
        return local_model(placed, group, number, mirrored=not servers)
    own = choose(device.kind, number) if rank in computing else None
    return LocalModel(placed.job.original, placed.job.original, Range(0, placed.layout.size), own)


def staging_of(world: World, job: Job, local: LocalModel) -> Staging | None:
    """Return the transfer of vectors between this rank's GPU and servers, if it has any."""
    device = local.device
    if not world.trains or not world.roles.servers or device is None or device.xp is np:
        return None
    return Staging(device.xp, is_direct(job.config.device.transfer))


def open_run(world: World, placed: PlacedJob, device: Device | None) -> tuple[Reporter | None, Path, str]:
    """On the coordinator, open the run's directory and report all devices; return directory and token on all."""
    comm, roles, config = world.comm, world.roles, placed.job.config
    devices = comm.gather(device and str(device), root=roles.coordinator)
    reporter: Reporter | None = None
    outcome: tuple[Path, str] | MpidlError | None = None
    if devices is not None:
        try:
            given, samples = placed.job.script.loggers, placed.position.samples
            recorder = Recorder(config, resume=placed.job.continues, given=given, samples=samples)
            library = MPI.Get_library_version().rstrip("\0").splitlines()[0].partition(", package")[0]
            marks.tell_run(recorder.directory)
            reporter = Reporter(placed, recorder, origin(roles.hosts, library, config.run.seed))
            reporter.assigned(roles, world.survival.limits)
            servers = [devices[rank] for rank in roles.servers if devices[rank]]
            workers = [each for rank, each in enumerate(devices) if each and rank not in roles.servers]
            reporter.placed(workers, servers)
            outcome = recorder.directory, recorder.token
        except MpidlError as error:
            outcome = error
    outcome = comm.bcast(outcome, root=roles.coordinator)
    if isinstance(outcome, MpidlError):
        raise outcome
    assert outcome is not None
    return reporter, *outcome


def begun_role(world: World, ready: ReadyJob, transport: Transport, reporter: Reporter | None) -> Role:
    """Return this rank's role, bound to a transport: all that may fail or takes long is done before the training."""
    rank, roles, held = world.rank, world.roles, transport.capacity.held
    role: Role = Standby()
    if reporter is not None or rank in roles.servers:
        role = _make_role(world, ready, transport, reporter)
    elif rank in roles.intermediaries:
        number, parts = roles.intermediaries.index(rank), [each.range for each in held]
        merging = sparse.of_intermediary(ready.job, transport.capacity.side_data)
        role = intermediaries.make(ready, number, parts, len(roles.intermediaries), merging)
    elif world.trains:
        number = world.workers.index(rank)
        direct = transport.routes.of(number).direct
        channel = sparse.of_worker(ready, transport.capacity.side_data, len(roles.servers), direct)
        role = Worker(ready, number // len(ready.placed.slices), held, direct, channel)
        role.hand_over, role.computing = world.survival.hand_over, world.survival.computing
    if reporter is None:  # Any rank may have to play a server's; the coordinator starts without Numba.
        rehearse_shard(ready.placed)
    role.begin(transport)
    return role


def play_taken_over(
    world: World, ready: ReadyJob, transport: Transport, own: Role, trace: tracing.Untraced, rank: int,
    recovered: Callable[[int], None],
) -> None:  # fmt: skip
    """Play a rank whose process has ended to the end of the run; call `recovered` when its work goes on.

    `own` is the role of this process's own rank.
    """
    with trace.recovering(rank):
        transport.turn.take()
        transport = transport.as_rank(rank)
        if rank in world.workers:
            assert isinstance(own, Worker), "workers take over workers"
            role: Role = WorkerRecovery(ready, world.workers.index(rank), own, world.survival.alone())
        else:
            role = _make_role(world, ready, transport, None)
        role.adopt(transport)
    recovered(role.lost)
    trace.follow(role, transport)
    role.run()
    transport.turn.leave()


def _make_role(world: World, ready: ReadyJob, transport: Transport, reporter: Reporter | None) -> Role:
    """Return the role of the transport's rank, which doesn't train."""
    rank, roles, held = transport.rank, world.roles, transport.capacity.held
    if rank != roles.coordinator:
        return _make_server(world, ready, held, transport)
    role = Coordinator(ready, reporter or _continued(ready), rank, len(held), len(roles.intermediaries))
    role.incidents = world.survival.incidents
    return role


def _continued(ready: ReadyJob) -> Reporter:
    """Return a reporter that goes on with the files of a run, whose coordinator's process has died."""
    config, placed = ready.job.config, ready.placed
    named = replace(config, run=replace(config.run, name=ready.directory.name))
    return Reporter(placed, Recorder(named, token=ready.token))


def _make_server(world: World, ready: ReadyJob, held: Sequence[Held], transport: Transport) -> Server:
    job, device, number = ready.job, ready.local.device, world.roles.servers.index(transport.rank)
    xp = np if device is None else device.xp

    def shard(place: int, part: Range) -> Shard:
        chunk = transport.geometries[place].chunk
        if world.rank != transport.rank:
            return unfilled(ready.placed, part, chunk)
        # Filled where it will stay: a large shard doesn't fit into memory twice.
        memory = transport.vectors(place)
        state = [memory[name] if name in memory else np.empty(part.size, job.dtype) for name in job.states]
        found = fill(ready.placed, part, memory[PARAMETERS], chunk, state, xp)
        found.side_state = sparse.of_server(ready.placed, found.clock, number, len(world.roles.servers))
        return found

    shards = {place: shard(place, part) for place, (part, holder, _) in enumerate(held) if holder == number}
    if xp is not np:
        rehearse_shard(ready.placed, xp)
    return Server(
        number, shards, ready.directory, ready.scratch, workers=len(world.roles.pushers()),
        portion=ready.placed.schedule.portion, deterministic=job.config.run.deterministic,
        coordinated=job.algorithm.coordinated,
        save=ShardFiles(job.config.checkpoint.full_every, job.config.run.terminate_on_nan).save,
    )  # fmt: skip
