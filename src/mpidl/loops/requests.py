"""The requests of an algorithm's replica whose gradients a loop computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import structs

from mpidl.algorithms.algorithm import Algorithm, Exchange, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.loops.switch import Event, Switch

#: The handle of the batch that the loop has already: it makes another step without a new one.
SAME = object()
#: Updates that no gradient is late by.
NEVER = 1 << 62


class Left(Exception):
    """The loop has ended with a batch that it took, and the replica ends without its gradient."""


class LoopRequests:
    """Passes a replica's requests on, and runs the loop where a batch or a gradient is asked for.

    The loop runs until it takes a batch before the engine is asked for one, so that it may end at any time. If the
    algorithm fetches parameters before each gradient, they are fetched at the end of a step, because the loop may make
    several steps with one batch.

    Parameters
    ----------
    requests : generator
        Of the algorithm, for `parameters` (size,).
    show : callable
        Has the model compute with the parameters, and makes the loop the one that computes.
    """

    def __init__(
        self, requests: Replica, algorithm: Algorithm, parameters: Any, state: ReplicaState, switch: Switch,
        show: Callable[[], None],
    ) -> None:  # fmt: skip
        pattern = algorithm.pattern(switch.replica.replicas)
        self._fetch = Fetch(parameters) if pattern.fetches_next and not pattern.prefetches else None
        self._requests, self._parameters, self._switch, self._show = requests, parameters, switch, show
        self._leaves, self._state = algorithm.exchange is Exchange.SERVERS, state
        self._fetched = self._joined = False

    def run(self) -> Replica:
        """Yield the requests to the end of the replica, and let the loop end."""
        answer, ends = None, False
        try:
            while True:
                try:
                    request = self._requests.send(answer)
                except StopIteration:
                    ends = True
                    return
                if isinstance(request, NextBatch):
                    answer = yield from self._next_batch(request)
                elif isinstance(request, Gradient):
                    answer = yield from self._gradient(request)
                elif isinstance(request, Fetch) and self._fetched:
                    self._fetched, answer = False, None
                else:
                    if isinstance(request, Push) and self._switch.parts:
                        request = structs.replace(request, parts=self._switch.parts)
                    answer = yield request
        except Left:
            return
        finally:
            self._requests.close()
            if not self._switch.ended:
                self._show()
                self._switch.stopped = not ends
                self._switch.finish(closed=True)

    def _next_batch(self, request: NextBatch) -> Any:
        if self._fetch is not None:
            yield structs.replace(self._fetch, parts=self._switch.parts)
            self._fetched = True
        self._show()
        self._switch.model.refresh()
        event = self._switch.event
        if event is not Event.TAKES:  # else a gradient was given up before the loop had its batch
            while (event := self._switch.resume()) is Event.STEPS and self._switch.again:
                self._switch.model.refresh()  # a batch comes again with all its steps
        if event is Event.STEPS:
            return SAME
        return (yield request) if event is Event.TAKES else None

    def _gradient(self, request: Gradient) -> Any:
        switch, late_by = self._switch, request.late_by
        if request.batch is SAME:
            return switch.gradient
        if late_by is not None:
            # Of a gradient of several batches only the last one would come again, and other steps have been pushed.
            request = structs.replace(request, late_by=lambda clock: NEVER if self._joined else late_by(clock))
        self._joined = False
        while True:
            switch.may_leave = self._leaves and not self._state.counts["unpushed"]
            gradient = yield structs.replace(request, function=self._compute)
            if gradient is None and switch.event is Event.ENDS:
                raise Left
            switch.again = gradient is None
            if gradient is None or switch.event is not Event.TAKES:
                self._joined, self._state.unstepped = True, 0
                return gradient
            # The loop adds up the gradients of several batches.
            batch = yield NextBatch()
            if batch is not None:
                request = structs.replace(request, batch=batch)
                continue
            steps = switch.finish(closed=False) is Event.STEPS
            if not steps and switch.may_leave:
                raise Left
            self._state.unstepped = 0
            return switch.gradient if steps else np.zeros_like(self._parameters)

    def _compute(self, model: Any, batch: Any) -> Any:
        self._show()
        found = model.loss_and_gradient(batch)
        if self._switch.event is Event.TAKES:
            self._joined = True
            self._state.unstepped += 1
        return found
