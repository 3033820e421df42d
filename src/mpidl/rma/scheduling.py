"""Sharing cores: servers run promptly beside workers that compute all the time."""

from __future__ import annotations

import ctypes
import os
import struct

from mpi4py import MPI

_PR_SET_TIMERSLACK = 29
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
#: Seconds by which a sleep may end late; the default of Linux is 50 us.
SLACK = 1e-6
#: Seconds of processor time that a server asks for at a time; Linux 6.12 and newer run short requests sooner.
SLICE = 1e-4


def sharpen_sleeps() -> None:
    """Let short sleeps of this process end on time, where the system can do that."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, int(SLACK * 1e9), 0, 0, 0)
    except (AttributeError, OSError):
        return


def run_promptly() -> None:
    """Let this process run as soon as it wakes, even where others compute on every core; older systems ignore it."""
    number = _SYS_SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return
    # struct sched_attr: size, policy (normal), flags, nice, priority, then the slice as runtime, deadline, period.
    attributes = struct.pack("=IIQiIQQQ", 48, 0, 0, os.nice(0), 0, int(SLICE * 1e9), 0, 0)
    try:
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
    except (AttributeError, OSError):
        return


def crowded(comm: MPI.Intracomm) -> bool:
    """Return whether the ranks of this node outnumber the cores that they may run on; collective over `comm`."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores = set().union(*node.allgather(os.sched_getaffinity(0)))
    ranks = node.size
    node.Free()
    return ranks > len(cores)
