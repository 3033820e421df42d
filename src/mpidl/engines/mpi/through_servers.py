"""Fetch and push by way of the servers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpidl.algorithms.requests import Fetch, Push
from mpidl.device import from_host
from mpidl.engines.mpi.request_handler import RequestHandler
from mpidl.engines.mpi.waiting import Waiting, timer
from mpidl.parameters.ranges import Range, within
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.interface.worker import WorkerLink
from mpidl.transport.protocol import Order, ShardClock
from mpidl.wire import Differences, ErrorFeedback, Wire


class ThroughServers(RequestHandler):
    """A worker's ways to the servers.

    Parameters
    ----------
    shards : sequence of Range
        The shards that make up the worker's slice of the vector, counted from its beginning.
    dtype : dtype
        The parameters' dtype.
    wire, wire_fetch : Wire, optional
        How pushes, and how fetches are encoded.
    in_rounds : bool
        Whether servers apply pushes in rounds, as in a deterministic run.
    statistics : sequence of Range
        What of the slice are statistics, which are not encoded.

    Attributes
    ----------
    fetched : array (shards, len(ShardClock)) of int64
        What each shard's server showed at the last fetch.
    """

    def __init__(
        self,
        shards: Sequence[Range],
        dtype: Any,
        wire: Wire | None = None,
        wire_fetch: Wire | None = None,
        *,
        in_rounds: bool = False,
        statistics: Sequence[Range] = (),
    ) -> None:
        super().__init__()
        self.together = in_rounds
        self.actions = {Fetch: self._fetch, Push: self._push}
        if wire is not None:
            self.feedback = [ErrorFeedback(wire, shard.size, dtype, within(statistics, shard)) for shard in shards]
        if wire_fetch is not None:
            self.copies = [
                Differences(wire_fetch, np.zeros(shard.size, dtype), statistics=within(statistics, shard))
                for shard in shards
            ]
        self.fetched = np.full((len(shards), len(ShardClock)), -1, np.int64)
        self._parts = [slice(*shard) for shard in shards]
        self._spare: Any = None
        self._spare_fetched = self.fetched.copy()
        self._now = self.fetched.copy()
        self._portions: tuple[int, int] | None = None
        # The shards whose next fetch has begun behind a push.
        self._followed: Sequence[int] = ()
        # Whether parameters have what the next fetch ahead is to copy.
        self._brought = False
        # The gradient whose push has begun while it is computed, and what had been pushed before.
        self._leaving: Any = None
        self._pushed_before = 0

    def bind(self, link: WorkerLink) -> None:
        super().bind(link)
        self._waiting, self._timer = Waiting(link, self.status), timer(link.crowded)

    def unbind(self) -> None:
        """See `RequestHandler.unbind`: a fetch that has begun arrives before, unless it is encoded."""
        self._link.finish_fetch()
        self._followed = ()
        if self.copies:
            self._spare = None

    def took(self, portion: int, batch: int) -> None:
        super().took(portion, batch)
        self._portions = (portion if self._portions is None else self._portions[0], portion)

    def applied(self) -> bool:
        return self._link.applied()

    # Checkpoints.

    def order(self, told: Order, marked: int) -> Order:
        """See `RequestHandler.order`: in rounds, an order is obeyed after as many pushes as it says."""
        if not self.together:
            return told
        pushes = int(self.status.figures["pushes"])
        self._waiting.until(lambda: self._begin_round(pushes + 1))
        order, decided = self._round
        return order if order.number == marked or pushes == decided else order._replace(number=marked)

    def _begin_round(self, pushes: int) -> bool:
        self._round = self._link.begin_round(pushes)
        return self._round[1] is not None

    def mark(self, order: int) -> bool:
        return self._link.mark(order)

    def last_fetched(self) -> list[list[int]]:
        fetched: list[list[int]] = self.fetched.tolist()
        return fetched

    def vectors(self) -> dict[str, np.ndarray]:
        """See `RequestHandler.vectors`: the residual of the wire format, and the copy that follows the shards."""
        vectors = {"residual": np.concatenate([each.residual for each in self.feedback])} if self.feedback else {}
        if self.copies and all(each.begun for each in self.copies):
            vectors["copy"] = np.concatenate([each.values for each in self.copies])
        return vectors

    def load(self, position: ReplicaPosition, vectors: Mapping[str, np.ndarray]) -> None:
        super().load(position, vectors)
        if self.unpushed:
            self._portions = (self.unpushed[0][0], self.unpushed[-1][0])
        # No push has arrived in part, so that all clocks are those of any shard.
        clocks = [clocks[ShardClock.CLOCK] for clocks in position.fetched]
        self.fetched[:, ShardClock.CLOCK] = max(clocks, default=-1)
        start = 0
        for feedback in self.feedback if "residual" in vectors else ():
            size = feedback.residual.size
            feedback.residual[:] = vectors["residual"][start : start + size]
            start += size
        start = 0
        for copy in self.copies if "copy" in vectors else ():
            copy.copy(vectors["copy"][start : start + copy.values.size])
            start += copy.values.size

    def fetch(self, parameters: np.ndarray) -> None:
        self._finish_following()
        self._waiting.until(self.applied)
        self._link.fetch_present(parameters)

    def end_pushes(self) -> None:
        self._waiting.until(self._link.end_pushes)

    def _fetch(self, request: Fetch) -> None:
        figures = self.status.figures
        if not figures["first_fetch"]:
            figures["first_fetch"] = time.time()
        figures["fetches"] += 1
        if not request.ahead:
            followed = self._finish_following()
            self._waiting.until(self.applied)
            if request.newer:
                self._waiting.until(lambda: self._link.all_newer(self.fetched))
            self._start_fetch(request.parameters, self._now, followed)
            self._finish_fetch(request.parameters)
            behind = (request.parameters[self._parts[n]].nbytes for n in followed if n not in self._link.encoded)
            figures["bytes_behind"] += sum(behind)
            self._look_for_cut(self._now)
            self.fetched[:] = self._now
            return
        if self._brought:
            self._brought = False
            return
        self._take_ahead(request.parameters)
        self._start_fetch(self._spare, self._spare_fetched)

    def _take_ahead(self, parameters: Any) -> None:
        """Copy what is fetched ahead; the first time, fetch it before."""
        if self._spare is None:
            self._spare = np.empty_like(parameters)
            self._start_fetch(self._spare, self._spare_fetched)
        self._finish_following()
        self._finish_fetch(self._spare)
        self._look_for_cut(self._spare_fetched)
        np.copyto(parameters, self._spare)
        self.fetched[:] = self._spare_fetched

    def _look_for_cut(self, clocks: np.ndarray) -> None:
        self.cut_seen(max(clocks[:, ShardClock.CUT].tolist(), default=0))

    def _start_fetch(self, parameters: np.ndarray, clocks: np.ndarray, without: Sequence[int] = ()) -> None:
        started = self._timer()
        # A clock read before the parameters never makes them look fresher than they are.
        self._link.start_fetch(parameters, clocks, without)
        self.status.figures["fetching_seconds"] += self._timer() - started

    def _finish_fetch(self, parameters: Any) -> None:
        """Let a started fetch arrive."""
        figures, before = self.status.figures, self._link.bytes_fetched
        if self._link.encoded:
            self._waiting.until(self._link.take_differences)
        started = self._timer()
        self._link.finish_fetch()
        # What travels between nodes, a relay counts.
        if not self._link.relayed:
            figures["bytes_fetched"] += self._link.bytes_fetched - before
        for number, part in enumerate(self._parts):
            if number in self._link.encoded:
                from_host(self.copies[number].values, parameters[part])
            elif not self._link.relayed:
                figures["bytes_fetched"] += parameters[part].nbytes
        figures["fetching_seconds"] += self._timer() - started

    def take_final(self, gradient: Any, start: int) -> None:
        """See `RequestHandler.take_final`: a relay waits for a push that has begun, and gets it when it is whole."""
        if self._link.relayed:
            return
        started = self._timer()
        if self._leaving is None:
            self._begin_push(*self._headers(), zero_copy=True)
            self._leaving = gradient
        self._link.send_final(gradient, start)
        self.status.figures["pushing_seconds"] += self._timer() - started

    def _push(self, request: Push) -> None:
        # Rounds are the same wherever ranks are.
        follows = request.fetched_next is not None and not self.together and self._link.can_follow
        if self._leaving is None:
            self._begin_push(*self._headers(), zero_copy=request.fetched_next is not None and not request.ahead)
        else:
            assert self._leaving is request.vector, "a part of another vector has been sent"
            self._leaving = None
        if request.ahead and follows:
            # What has arrived behind the push before tells, too, that there is room for this one.
            self._take_ahead(request.fetched_next)
            self._brought = True
        self._deliver(request.vector)
        self.unpushed.clear()
        if self._brought:
            self._follow(self._spare, self._spare_fetched)
            self._start_fetch(self._spare, self._spare_fetched, self._followed)
        elif follows and not request.ahead:
            self._follow(request.fetched_next, self._now)

    def _follow(self, parameters: Any, clocks: np.ndarray) -> None:
        """Start fetching behind a push what its servers can be asked for."""
        started = self._timer()
        self._followed = self._link.follow_push(parameters, clocks)
        self.status.figures["fetching_seconds"] += self._timer() - started

    def _headers(self) -> tuple[Sequence[int], tuple[int, int]]:
        portions, self._portions = self._portions or (-1, -1), None
        return self.fetched[:, ShardClock.CLOCK].tolist(), portions

    def _finish_following(self) -> Sequence[int]:
        """Let what was fetched behind the last push arrive; return the shards of which that was."""
        followed, self._followed = self._followed, ()
        if followed:
            started = self._timer()
            self._link.finish_following()
            self.status.figures["fetching_seconds"] += self._timer() - started
        return followed

    def _send(self, vector: Any, clocks: Sequence[int], portions: tuple[int, int]) -> None:
        """Send a vector with what goes into its headers: a clock for each server, and two numbers."""
        self._begin_push(clocks, portions)
        self._deliver(vector)

    def _begin_push(self, clocks: Sequence[int], portions: tuple[int, int], zero_copy: bool = False) -> None:
        self._pushed_before = self._link.bytes_pushed
        self._link.begin_push(clocks, portions, zero_copy)

    def _deliver(self, vector: Any) -> None:
        """Send what is left of a push that has begun."""
        figures = self.status.figures
        self._waiting.until(lambda: self._send_some(vector))
        figures["pushes"] += 1
        figures["bytes_pushed"] += 0 if self._link.relayed else self._link.bytes_pushed - self._pushed_before
        figures["last_push"] = time.time()

    def _send_some(self, vector: Any) -> bool:
        started = self._timer()
        delivered = self._link.send_push(vector)
        self.status.figures["pushing_seconds"] += self._timer() - started
        return delivered
