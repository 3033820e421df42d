"""What a rank of an MPI job does for its role, before the training and while it lasts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from mpidl.device import Device, choose
from mpidl.engines.mpi.group import MpiGroup
from mpidl.errors import MpidlError
from mpidl.job.fill import fill
from mpidl.job.job import Job
from mpidl.job.place import place
from mpidl.job.rehearsal import learn_outputs, rehearse_shard
from mpidl.parameters import Held
from mpidl.report.recorder import Recorder, origin
from mpidl.report.reporter import Reporter
from mpidl.rma.staging import Staging, is_direct
from mpidl.rma.transport import Transport
from mpidl.roles.coordinator import Coordinator
from mpidl.roles.server import Server
from mpidl.roles.worker import Worker
from mpidl.runs.features import others
from mpidl.runs.training_process import stopping, undisturbed
from mpidl.shards.shard import Shard
from mpidl.topology.roles import Roles

T = TypeVar("T")


class RankRole:
    """The steps of this rank's role; every rank takes the same steps.

    Attributes
    ----------
    staging : Staging or None
        How vectors on its GPU travel, if it has any that do.
    outputs : int
        Number of the model's outputs, if this rank has learnt it for the metrics.
    unbind : callable
        Lets go of the transport's memory, which is about to be freed.
    """

    def __init__(
        self, comm: MPI.Intracomm, roles: Roles, job: Job, held: list[Held], group: MpiGroup | None = None
    ) -> None:
        self._comm, self._roles, self._job, self._held, self._group = comm, roles, job, held, group
        self._workers = [rank for replica in roles.replicas for rank in replica]
        self._reporter: Reporter | None = None
        self._place: Device | None = None
        self.staging: Staging | None = None
        self.outputs = 0
        self._work: Callable[[], dict[str, Any] | None] = lambda: None
        self._shards: list[Shard] = []
        self._fingerprints: list[int] = []
        self.unbind: Callable[[], None] = lambda: None

    def choose_device(self, nodes: list[int]) -> None:
        """Choose the device of a rank that computes; ranks of a node take its GPUs in turn.

        Parameters
        ----------
        nodes : list of int
            The node of each rank, as a number.
        """
        job, device, servers = self._job, self._job.config.device, self._roles.servers
        workers = set(self._workers)
        computing = workers | set(servers if device.shards else ())
        rank = self._comm.rank
        number = sum(nodes[other] == nodes[rank] for other in computing if other < rank)
        if rank in workers:
            # With servers, a replica's vectors stay on the device.
            self._place = place(job, number, mirrored=not servers)
            if servers and self._place is not None and self._place.xp is not np:
                self.staging = Staging(self._place.xp, is_direct(device.transfer))
        elif rank in computing:
            self._place = choose(device.kind, number)

    def rehearse(self) -> None:
        """Let a worker's model compute once, if it is the user's own or there are metrics of its outputs."""
        if self._comm.rank in self._workers:
            self._job.rehearse()
            self.outputs = learn_outputs(self._job)

    def open_files(self) -> None:
        """On the coordinator, open the run's directory and report all devices; tell every rank the directory."""
        job = self._job
        places = self._comm.gather(self._place and str(self._place), root=self._roles.coordinator)
        directory: Path | None = None
        error: MpidlError | None = None
        if self._comm.rank == self._roles.coordinator:
            try:
                recorder = Recorder(job.config, resume=job.continues)
                assert places is not None
                library = MPI.Get_library_version().rstrip("\0").splitlines()[0].partition(", package")[0]
                self._reporter = Reporter(job, recorder, origin(self._roles.hosts, library, job.config.run.seed))
                self._reporter.assigned(self._roles)
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
            role = coordinator = Coordinator(job, self._reporter, rank, len(self._held), len(roles.others))
            self._work = lambda: _interruptible(coordinator.run, coordinator.interrupt)
        elif rank in roles.servers:
            role = server = self._make_server(roles.servers.index(rank), transport)
            self._shards = [each.shard for each in server.served]
            self._work = lambda: _interruptible(server.serve, server.interrupt)
        elif rank in roles.others:
            other = others.make(job, roles.others.index(rank), [part for part, _, _ in self._held], len(roles.others))
            self._work = lambda: _interruptible(other.serve, other.interrupt)
            other.bind(transport)
            return
        elif rank in transport.workers:
            rehearse_shard(job)
            place = transport.workers.index(rank)
            direct = transport.routes.of(place).direct
            role = worker = Worker(job, place // len(job.slices), self._held, self._group, direct)
            self._shards = list(worker.shards)
            self._work = lambda: _interruptible(worker.run, worker.interrupt)
        else:
            return
        self._fingerprints = [shard.fingerprint() for shard in self._shards]
        role.bind(transport)
        self.unbind = role.unbind

    def _make_server(self, number: int, transport: Transport) -> Server:
        job, xp = self._job, np if self._place is None else self._place.xp
        shards = {
            place: fill(job, part, np.empty(part.size, job.dtype), transport.chunks[place], xp=xp)
            for place, (part, holder, _) in enumerate(self._held)
            if holder == number
        }
        rehearse_shard(job, xp)
        return Server(
            number, shards, job.directory, workers=len(self._roles.pushers()),
            deterministic=job.config.run.deterministic, coordinated=job.algorithm.coordinated,
            finite=job.config.run.terminate_on_nan,
        )  # fmt: skip

    def has_changed(self) -> bool:
        """Return whether this rank's shards, if it has any, have other parameters than at the start."""
        return [shard.fingerprint() for shard in self._shards] != self._fingerprints

    def work(self) -> dict[str, Any] | None:
        """Play the role to its end; the coordinator returns the summary."""
        with undisturbed():
            return self._work()


def _interruptible(action: Callable[[], T], interrupt: Callable[[], None]) -> T:
    with stopping(interrupt):
        return action()
