"""Waiting without taking the core from those who compute, while MPI goes on making progress."""

from __future__ import annotations

import time

from mpi4py import MPI

from mpidl.rma.doorbells import Doorbells

#: Longest sleep where everything that concerns a rank rings its doorbell, and where it does not (seconds).
RUNG_SLEEP = 5e-3
BLIND_SLEEP = 200e-6


class Backoff:
    """Between two looks at memory that others write: spin a little, then sleep until the doorbell rings.

    Every `pause` enters MPI once, so that one-sided operations aimed at this rank and messages to it go on over
    networks that have no progress of their own.

    Parameters
    ----------
    comm : MPI.Comm
        It is only probed.
    doorbells : Doorbells
    sleep : float
        Longest sleep in seconds; `BLIND_SLEEP` if ranks that can't ring may want something.
    spin : float
        Seconds to spin after `reset` before the first sleep; 0 where ranks outnumber cores.
    """

    def __init__(self, comm: MPI.Comm, doorbells: Doorbells, sleep: float, spin: float = 0.0) -> None:
        self._comm, self._doorbells, self._sleep, self._spin = comm, doorbells, sleep, spin
        self._spin_until = 0.0
        self._cleared = False

    def reset(self) -> None:
        """Say that there was work: the next pauses spin again."""
        self._cleared = False
        if self._spin:
            self._spin_until = time.perf_counter() + self._spin

    def progress(self) -> None:
        """Let MPI make progress without waiting."""
        self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def pause(self) -> bool:
        """Let MPI make progress and wait a moment; call it in a loop that looks for work each time.

        Returns whether it slept the whole time, and nobody rang.
        """
        self.progress()
        if self._spin and time.perf_counter() < self._spin_until:
            return False
        idle = self._cleared and not self._doorbells.sleep(self._sleep)
        self._doorbells.clear()
        self._cleared = True
        return idle
