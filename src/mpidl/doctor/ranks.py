"""The part of the examination that two ranks of a job carry out together."""

from __future__ import annotations

import socket
import time
from functools import partial
from pathlib import Path

from mpi4py import MPI

from mpidl.doctor import library, serving, windows
from mpidl.doctor.examination import Examination, Finding
from mpidl.doctor.measuring import Measuring
from mpidl.doctor.pair import Pair
from mpidl.rma.windows import ALLOCATIONS, allocation_chosen

#: Seconds between two tests, by the ranks that take no part, for the end.
LOOK_EVERY = 0.01


def examine(examination: Examination, save: Path | None = None) -> int:
    """Examine the first and the last rank while the others sleep, and return the exit code; collective.

    What is measured is kept in the file `save`, if given.
    """
    world = MPI.COMM_WORLD
    chosen = world.rank in (0, world.size - 1)
    comm = world.Split(0 if chosen else MPI.UNDEFINED)
    code = _examine_pair(examination, Pair(comm), save) if isinstance(comm, MPI.Intracomm) and chosen else 0
    ended = world.Ibarrier()
    while not ended.Test():
        time.sleep(LOOK_EVERY)
    return code


def _examine_pair(examination: Examination, pair: Pair, save: Path | None) -> int:
    examination.comm = pair.comm
    examination.check("thread level", library.threads)
    examination.check("ranks", partial(places, pair))
    examination.check("after a rank's death", library.fault_tolerance)
    used = allocation_chosen()
    sound = {way: _examine_windows(examination, pair, way, way == used) for way in ALLOCATIONS}
    if sound[used]:
        examination.heading("server")
        examination.check("  doorbells", partial(serving.doorbells, pair), needed=False)
        examination.check("  idle", partial(serving.idle_server, pair, used))
    examination.check("transport", partial(transport, sound, used))
    if save is not None and sound[used]:
        examination.heading("measured")
        measuring = Measuring(pair, used, save)
        for what, probe in (("node", measuring.node), ("link", measuring.link), ("saved", measuring.save)):
            examination.check(f"  {what}", probe)
    return examination.end()


def _examine_windows(examination: Examination, pair: Pair, way: str, used: bool) -> bool:
    """Examine windows that are allocated in one way, and return whether they are correct."""
    examination.heading(f"windows, {way}{' (used)' if used else ''}")
    for what, probe in (("memory", windows.memory), ("order of data", windows.order)):
        if not examination.check(f"  {what}", partial(probe, pair, way), needed=used):
            return False
    for what, probe in (
        ("8 bytes", windows.latency),
        ("4 MiB", windows.bandwidth),
        ("busy target", windows.busy_target),
    ):
        examination.check(f"  {what}", partial(probe, pair, way), needed=used)
    return True


def places(pair: Pair) -> Finding:
    """Find the nodes of the two ranks."""
    hosts = pair.comm.allgather(socket.gethostname())
    ranks = pair.comm.allgather(MPI.COMM_WORLD.rank)
    on = ", ".join(f"{rank} on {host}" for rank, host in zip(ranks, hosts, strict=True))
    return Finding(f"{on} of {MPI.COMM_WORLD.size}: {'one node' if pair.one_node else 'two nodes'}")


def transport(sound: dict[str, bool], used: str) -> Finding:
    """Find the transport and the windows to use."""
    if sound[used]:
        return Finding(f'"windows" ({used})')
    others = [way for way, right in sound.items() if right]
    if others:
        return Finding(f'"windows" ({others[0]})', remedy=f"set MPIDL_WINDOWS={others[0]} on all ranks")
    return Finding(
        "none", remedy="these ranks' windows lose data: use another MPI library, or another network of this one"
    )
