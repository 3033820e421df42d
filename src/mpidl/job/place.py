"""Where a job's model computes."""

from __future__ import annotations

import numpy as np

from mpidl.device import Device, choose
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.job.slices import own_segments
from mpidl.nn.capabilities import Movable
from mpidl.nn.groups import Penalised
from mpidl.nn.ondevice import Mirrored, OnDevice


def place(job: Job, number: int = 0, mirrored: bool = True) -> Device | None:
    """Put the model on the device that ``[device]`` asks for. A rank that computes calls it once.

    Parameters
    ----------
    job : Job
        Its `model` is then the one that computes.
    number : int
        Number of this rank among those of its node that compute on GPUs.
    mirrored : bool
        Whether parameters and gradient lie in the host's memory even if the model computes on a GPU.

    Returns
    -------
    Device or None
        Where the model computes. None if there was no choice: the configuration says the CPU, or the model
        computes where it likes.

    Raises
    ------
    UsageError
        The configuration asks for a GPU that can't be had, or can't be used by the model.
    """
    place = _placed(job, number, mirrored)
    if job.algorithm.coordinated and job.segments:
        total = float if job.group is None else job.group.total
        job.model = Penalised(job.model, own_segments(job), total)
    return place


def _placed(job: Job, number: int, mirrored: bool) -> Device | None:
    kind = job.config.device.kind
    if not isinstance(job.original, Movable):
        if kind == "cuda":
            raise UsageError(
                "device.kind: 'cuda' is for [[model.layer]] and PyTorch modules; a model of your own computes "
                "where it likes"
            )
        return None
    place = choose(kind, number)
    if place.xp is not np:
        job.model = (Mirrored if mirrored else OnDevice)(job.part, place.xp)
    return None if kind == "cpu" else place
