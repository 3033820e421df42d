"""A job that is ready to train on this rank, with its own part of the model. The last of three stages."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct

from mpidl.algorithms.replica_state import GradientNorm, ReplicaState
from mpidl.data.kept import KeptState
from mpidl.device import Device, choose
from mpidl.errors import UsageError
from mpidl.job.fill import own_fragments, own_segments, own_statistics, own_trained
from mpidl.job.job import Job
from mpidl.job.placed import PlacedJob
from mpidl.metrics.figures import Figures
from mpidl.nn import Network
from mpidl.nn.groups import Penalised, frozen_names, weights_of
from mpidl.nn.model import CompleteModel, PlacedModel
from mpidl.nn.ondevice import Mirrored, OnDevice
from mpidl.parameters import Range
from mpidl.parameters.ranges import within
from mpidl.partition.group import CutModel, RankGroup
from mpidl.partition.network import CutNetwork
from mpidl.partition.section import Section
from mpidl.partition.sections import Sections
from mpidl.rules.segments import Segment
from mpidl.storage.files import is_interim, scratch
from mpidl.storage.writer import CheckpointIndex


class Interim(Protocol):
    """The place of interim checkpoints; one is due `every` seconds after the checkpoint before."""

    every: float

    def scratch(self, order: int) -> Path:
        """Return the directory in which this rank writes its files for an order."""
        ...

    def complete(self, order: int, index: CheckpointIndex) -> bool:
        """Complete the checkpoint of an order, whose other files are written, in the place of the one before.

        Return whether it is complete; a line on stderr says why if it isn't.
        """
        ...

    def discard(self) -> None:
        """Remove what is left: the run is over."""
        ...


class ReadyJob(Struct, frozen=True, eq=False):
    """A placed job with this rank's model, the run's directory, and the token of its unfinished checkpoints.

    `interim` is where interim checkpoints are kept; None for a run that makes none.
    """

    placed: PlacedJob
    local: LocalModel
    figures: Figures
    directory: Path
    token: str = ""
    interim: Interim | None = None

    @property
    def job(self) -> Job:
        return self.placed.job

    @property
    def checkpoints(self) -> Path:
        """Directory of the run's checkpoints."""
        return self.directory / "checkpoints"

    def scratch(self, order: int) -> Path:
        """Return the directory in which the checkpoint of an order is written."""
        if self.interim is not None and is_interim(order):
            return self.interim.scratch(order)
        return scratch(self.checkpoints, order, self.token)


class LocalModel(Struct, frozen=True, eq=False):
    """A rank's own part of a job's model.

    Attributes
    ----------
    host : CompleteModel
        The part on the host; the whole model unless it is cut, and on a rank that doesn't compute.
    model : PlacedModel
        The part on its device, which computes.
    slice : Range
        The rank's part of the job's flat vectors.
    device : Device or None
        None where there was no choice: the configuration says the CPU, or the model computes where it likes.
    group : RankGroup or None
        The ranks that compute the model together.
    """

    host: CompleteModel
    model: PlacedModel
    slice: Range
    device: Device | None = None
    group: RankGroup | None = None


def local_model(
    placed: PlacedJob, group: RankGroup | None = None, number: int = 0, mirrored: bool = True
) -> LocalModel:
    """Return this rank's part of a job's model, on the device that ``[device]`` asks for.

    `number` is that of this rank among those of its node that compute on GPUs. `mirrored` says whether parameters and
    gradient lie in the host's memory even if the model computes on a GPU. Raise UsageError if the configuration asks
    for a GPU, but none is found, or the model can't use it.
    """
    job, part = placed.job, Range(0, placed.layout.size)
    host: CompleteModel = job.original
    if group is not None:
        own = _part(placed, group)
        host, part = own, own.slice
    model: PlacedModel = host
    device = _device(job, number)
    if device is not None and device.xp is not np:
        model = (Mirrored if mirrored else OnDevice)(host, device.xp)
    return LocalModel(host, _penalised(placed, model, part, group), part, device, group)


def _penalised(placed: PlacedJob, model: PlacedModel, part: Range, group: RankGroup | None) -> PlacedModel:
    """Return a rank's part of a model with the penalties and the clipping that it doesn't apply itself.

    A network from ``[[model.layer]]`` applies ``model.l2`` and ``model.clip``; of groups, rules do, if there are any.
    """
    job, section = placed.job, placed.job.config.model
    own = section.layer is None
    l2, clip = (section.l2, section.clip) if own else (0.0, None)
    coordinated = job.algorithm.coordinated and bool(placed.segments)
    if not (l2 or clip or coordinated):
        return model
    segments = own_segments(placed, part)
    trained = own_trained(placed, part)
    names = weights_of(job.original) if l2 else []
    weights = within([each.range for each in placed.layout if each.name in names], part)
    applied = segments if coordinated else []
    for each in weights:
        found = [common for other in trained if (common := each.intersect(other)) is not None]
        applied = [*applied, *(Segment(common, weight_decay=l2) for common in found)]
    return Penalised(model, applied, clip, trained, float if group is None else group.total)


def _part(placed: PlacedJob, group: RankGroup) -> CutModel:
    """Return what this rank of a replica computes of a cut model."""
    job, plan, pipeline = placed.job, placed.plan, placed.job.config.topology.pipeline
    part: CutModel
    if isinstance(plan, Sections):
        part = Section(job.original, plan, group.rank, **pipeline)
    else:
        assert isinstance(job.original, Network)
        assert plan is not None
        part = CutNetwork(job.original, plan, group.rank, **pipeline)
    part.freeze(frozen_names(job.config.model.group, job.original.layout))
    part.bind(group)
    return part


def _device(job: Job, number: int) -> Device | None:
    kind = job.config.device.kind
    if job.original.tables:
        if kind == "cuda":
            raise UsageError("device.kind: 'cuda', but the model has tables, whose rows are in the host's memory")
        return None
    if job.algorithm.makes_model:
        if kind == "cuda":
            raise UsageError(f"device.kind: 'cuda', but {job.algorithm.name} computes on the CPU, expected 'auto'")
        return None
    if job.original.movable:
        return None if kind == "cpu" else choose(kind, number)
    if kind == "cuda":
        raise UsageError(
            "device.kind: 'cuda' is for [[model.layer]] and PyTorch modules in mpidl.train; other models choose their "
            "device, and mpidl.loop computes on the CPU"
        )
    return None


def replica_state(placed: PlacedJob, local: LocalModel) -> ReplicaState:
    """Return the initial state of a replica, or of this rank's part of one."""
    part = local.slice
    # A coordinator knows the norm of the whole gradient.
    trained = [] if placed.job.algorithm.coordinated else own_trained(placed, part)
    return ReplicaState(
        placed.rate_at, own_statistics(placed, part), own_segments(placed, part),
        partial(_kept, local.host, placed.job.dataset.kept), own_fragments(placed, part),
        GradientNorm(trained),
    )  # fmt: skip


def _kept(model: CompleteModel, data: KeptState | None) -> dict[str, np.ndarray]:
    """Return what a replica keeps of a model and of data for itself, by its names in a checkpoint."""
    kept = {} if data is None else {f"data/{name}": values for name, values in data.state().items()}
    kept |= {f"buffers/{name}": values for name, values in model.buffers().items()}
    return kept | {f"state/{name}": np.asarray(values) for name, values in model.state().items()}
