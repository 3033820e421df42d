"""A run on the ranks of an MPI job: all agree to begin, take their roles, and end together."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from mpidl.algorithms import Exchange
from mpidl.config import Config
from mpidl.device import Place, choose
from mpidl.engines.mpi.shard_collectives import LARGEST
from mpidl.errors import MpidlError, RankError, UsageError
from mpidl.job.description import of_data, of_model, of_samples
from mpidl.job.fill import fill
from mpidl.job.job import Job
from mpidl.job.memory import check_memory
from mpidl.job.rehearsal import rehearse_shard
from mpidl.launch import marks
from mpidl.launch.deaths import nodes_as_text
from mpidl.parameters import Range
from mpidl.report.origin import origin
from mpidl.report.recorder import Recorder, first_failure, record_event
from mpidl.report.reporter import Reporter
from mpidl.rma.room import check_windows
from mpidl.rma.staging import Staging, is_direct
from mpidl.rma.transport import WindowTransport
from mpidl.roles.coordinator import Coordinator
from mpidl.roles.server import Server
from mpidl.roles.worker import Worker
from mpidl.runs.agreement import check_same, raise_first
from mpidl.runs.judgement import say_unchanged, unwarned
from mpidl.runs.signals import stopping
from mpidl.shards.shard import CHUNK_BYTES, Shard
from mpidl.storage.interleaving import Interleaving, ServerRecord, WorkerRecord
from mpidl.topology.roles import Roles, assign
from mpidl.transport.capacity import Capacity
from mpidl.transport.interface import Transport

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
        if len(set(nodes)) > 1 and (text := nodes_as_text(nodes)) is not None:
            marks.tell(f"{marks.NODES} {text}")
    roles = assign(nodes, config.servers)
    job = _agree(comm, roles, build)
    _compare(comm, roles, job)
    _check_nodes(config, nodes)
    job.begin(len(roles.replicas))
    _agree(comm, roles, lambda: _check_memory(job, roles, nodes, comm.rank))
    ranges = job.shards(len(roles.servers) or len(roles.replicas))
    role = _RankRole(comm, roles, job, ranges)
    _agree(comm, roles, lambda: role.choose_device(nodes))
    _agree(comm, roles, role.rehearse)
    capacity = _capacity(job, ranges)
    _agree(comm, roles, lambda: check_windows(comm, roles, capacity))
    _agree(comm, roles, role.open_files)
    with _failing_together(comm, roles):
        transport = WindowTransport(comm, roles, capacity, staging=role.staging)
    try:
        _agree(comm, roles, lambda: role.prepare(transport))
    except MpidlError:
        role.discard_files()
        raise
    with _failing_together(comm, roles, job.directory), transport:
        summary: dict[str, Any] = comm.bcast(role.work(), root=roles.coordinator)
        if config.run.record:
            role.save_record(transport)
        role.unbind()
        changed = comm.allreduce(role.has_changed(), op=MPI.LOR)
    if job.shared:
        _share(comm, job.original.parameters, roles.replicas[0][0])
    if comm.rank == roles.coordinator and not changed:
        say_unchanged(summary)
    return summary


def _share(comm: MPI.Intracomm, parameters: np.ndarray, root: int) -> None:
    """Bring the trained parameters of the rank `root` to all others."""
    for start in range(0, parameters.size, LARGEST):
        comm.Bcast(parameters[start : start + LARGEST], root=root)


def _capacity(job: Job, ranges: list[Range]) -> Capacity:
    shared = 1 + len(job.states) if job.algorithm.exchange is Exchange.SHARED_MEMORY else 0
    return Capacity(
        ranges,
        job.dtype,
        wire=job.algorithm.encoding(),
        evaluations=max(1, job.schedule.epochs),
        units=job.units,
        shared_vectors=shared,
    )


def _check_memory(job: Job, roles: Roles, nodes: list[int], rank: int) -> None:
    """Check that what the ranks of this node hold fits into its memory."""
    here = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    servers = sum(other in roles.servers for other in here)
    workers = len(here) - servers - (roles.coordinator in here)
    shards = servers / len(roles.servers) * (1 + len(job.states)) if servers else 0
    check_memory(job, 2 * workers + shards, workers)


def _nodes(comm: MPI.Intracomm) -> list[int]:
    """Return for each rank the lowest rank of its node."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    lowest = node.allreduce(comm.rank, op=MPI.MIN)
    node.Free()
    return comm.allgather(lowest)


def _check_nodes(config: Config, nodes: list[int]) -> None:
    if config.algorithm.exchange is Exchange.SHARED_MEMORY and len(set(nodes)) > 1:
        raise UsageError(
            f"algorithm.name: {config.algorithm.name}'s replicas share one node's memory, "
            f"the ranks are on {len(set(nodes))} nodes"
        )


def _compare(comm: MPI.Intracomm, roles: Roles, job: Job) -> None:
    """Check that all ranks have the same model and data; those that don't train read no samples."""
    check_same("model", of_model(job.original), comm.rank, comm.allgather)
    sizes = check_same("data", of_data(job.given), comm.rank, comm.allgather)
    trains = any(comm.rank in ranks for ranks in roles.replicas)
    samples = _agree(comm, roles, lambda: of_samples(job.given) if trains else None)
    job.identify({**sizes, **check_same("data", samples, comm.rank, comm.allgather)})


def _agree(comm: MPI.Intracomm, roles: Roles, action: Callable[[], T]) -> T:
    """Carry out an action on every rank; if it fails on some, raise the first one's error on all."""
    error: MpidlError | None = None
    with _failing_together(comm, roles):
        try:
            result = action()
        except MpidlError as caught:
            error = caught
        except MemoryError as caught:
            error = UsageError(f"out of memory: {caught}")
    raise_first(error, comm.rank, comm.allgather, lambda rank: f"rank {rank}, {roles.role(rank)}")
    return result


@contextlib.contextmanager
def _failing_together(comm: MPI.Intracomm, roles: Roles, run: Path | None = None) -> Iterator[None]:
    """End the whole job if this rank raises an error that the others don't know of; name rank, role and cause.

    If the run's directory is given, the failure is recorded in its events, with a traceback, and of several ranks that
    fail at a time only the first says so.
    """
    try:
        yield
    except BaseException as error:
        cause = str(error) if isinstance(error, MpidlError) else f"{type(error).__name__}: {error}"
        rank = error.rank if isinstance(error, RankError) else comm.rank
        cause, role = " ".join(cause.split()), roles.role(rank)
        first = run is None or first_failure(run)
        if first:
            print(f"mpidl: rank {rank} ({role}) failed: {cause}", file=sys.stderr, flush=True)
        if run is not None:
            record_event(run, "failure", rank, role, cause=cause, traceback=traceback.format_exc())
        if os.environ.get("MPIDL_DEBUG"):
            traceback.print_exc()
        # The line needs time to pass through the launcher before the launcher ends the job.
        time.sleep(0.2 if first else 1.0)
        comm.Abort(1)


class _RankRole:
    """The steps of this rank's role; every rank takes the same steps.

    Attributes
    ----------
    staging : Staging or None
        How vectors on its GPU travel, if it has any that do.
    unbind : callable
        Lets go of the transport's memory, which is about to be freed.
    """

    def __init__(self, comm: MPI.Intracomm, roles: Roles, job: Job, ranges: list[Range]) -> None:
        self._comm, self._roles, self._job, self._ranges = comm, roles, job, ranges
        self._reporter: Reporter | None = None
        self._place: Place | None = None
        self.staging: Staging | None = None
        self._record: WorkerRecord | ServerRecord | None = None
        self._work: Callable[[], dict[str, Any] | None] = lambda: None
        self._shard: Shard | None = None
        self.unbind: Callable[[], None] = lambda: None

    def choose_device(self, nodes: list[int]) -> None:
        """Choose the device of a rank that computes; ranks of a node take its GPUs in turn.

        Parameters
        ----------
        nodes : list of int
            The node of each rank, as a number.
        """
        job, device, servers = self._job, self._job.config.device, self._roles.servers
        workers = {rank for ranks in self._roles.replicas for rank in ranks}
        computing = workers | set(servers if device.shards else ())
        rank = self._comm.rank
        number = sum(nodes[other] == nodes[rank] for other in computing if other < rank)
        if rank in workers:
            # With servers, a replica's vectors stay on the device.
            self._place = job.place(number, mirrored=not servers)
            if servers and self._place is not None and self._place.xp is not np:
                self.staging = Staging(self._place.xp, is_direct(device.transfer))
        elif rank in computing:
            self._place = choose(device.kind, number)

    def rehearse(self) -> None:
        """Let a worker's model compute once, if it is the user's own."""
        if any(self._comm.rank in ranks for ranks in self._roles.replicas):
            self._job.rehearse()

    def open_files(self) -> None:
        """On the coordinator, open the run's directory and report all devices; tell every rank the directory."""
        job = self._job
        places = self._comm.gather(self._place and str(self._place), root=self._roles.coordinator)
        hosts = self._comm.gather(MPI.Get_processor_name(), root=self._roles.coordinator)
        directory: Path | None = None
        error: MpidlError | None = None
        if self._comm.rank == self._roles.coordinator:
            try:
                recorder = Recorder(job.config, resume=job.continues)
                assert places is not None
                assert hosts is not None
                library = MPI.Get_library_version().rstrip("\0").splitlines()[0].partition(", package")[0]
                self._reporter = Reporter(job, recorder, origin(hosts, library, job.config.run.seed))
                servers = [places[rank] for rank in self._roles.servers if places[rank]]
                workers = [place for rank, place in enumerate(places) if place and rank not in self._roles.servers]
                self._reporter.placed(workers, servers)
                directory = recorder.directory
            except MpidlError as caught:
                error = caught
        directory, error = self._comm.bcast((directory, error), root=self._roles.coordinator)
        if error is not None:
            raise error
        assert directory is not None
        job.directory = directory

    def discard_files(self) -> None:
        """On the coordinator, remove the directory of a run that does not begin."""
        if self._reporter is not None:
            self._reporter.recorder.discard()

    def prepare(self, transport: Transport) -> None:
        """Do before the training what may fail or takes long."""
        rank, job, roles = self._comm.rank, self._job, self._roles
        role: Coordinator | Server | Worker
        if self._reporter is not None:
            role = coordinator = Coordinator(job, self._reporter)
            self._work = lambda: _interruptible(coordinator.run, coordinator.interrupt)
        elif rank in roles.servers:
            role = server = self._make_server(roles.servers.index(rank), transport)
            self._shard = server.shard
            self._work = lambda: _interruptible(server.serve, server.interrupt)
        elif rank in transport.workers:
            rehearse_shard(job)
            role = worker = Worker(job, transport.workers.index(rank), len(transport.workers), self._ranges)
            self._record, self._shard = worker.record, worker.shard
            self._work = lambda: _interruptible(worker.run, worker.interrupt)
        else:
            return
        self._fingerprint = self._shard.fingerprint() if self._shard is not None else 0
        role.bind(transport)
        self.unbind = role.unbind

    def _make_server(self, number: int, transport: Transport) -> Server:
        job, xp = self._job, np if self._place is None else self._place.xp
        part = self._ranges[number]
        shard = fill(job, part, np.empty(part.size, job.dtype), transport.chunks[number], xp=xp)
        rehearse_shard(job, xp)
        server = Server(
            number, shard, job.directory, workers=len(transport.workers),
            deterministic=job.config.run.deterministic, coordinated=job.algorithm.coordinated,
            finite=job.config.run.terminate_on_nan,
        )  # fmt: skip
        if job.config.run.record:
            self._record = server.record = ServerRecord()
        return server

    def has_changed(self) -> bool:
        """Return whether this rank's shard, if it has one, has other parameters than at the start."""
        return self._shard is not None and self._shard.fingerprint() != self._fingerprint

    def save_record(self, transport: Transport) -> None:
        """Write the run's interleaving; all ranks take part."""
        records = self._comm.gather(self._record, root=self._roles.coordinator)
        if records is None:
            return
        servers = self._roles.servers
        workers = [records[rank].arrays(len(servers)) for rank in transport.workers]
        Interleaving(
            step=self._job.position.step,
            chunk=transport.chunks[0] if servers else CHUNK_BYTES // self._job.dtype.itemsize,
            batches=[batches for batches, _ in workers],
            fetches=[fetches for _, fetches in workers],
            arrivals=[records[rank].arrays() for rank in servers],
        ).save(self._job.directory)

    def work(self) -> dict[str, Any] | None:
        """Play the role to its end; the coordinator returns the summary."""
        with unwarned():
            return self._work()


def _interruptible(action: Callable[[], T], interrupt: Callable[[], None]) -> T:
    with stopping(interrupt):
        return action()
