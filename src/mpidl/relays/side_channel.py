"""A relay's side channel: what workers of its node exchange with servers besides their vectors."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np

from mpidl.relays.link import RelayLink
from mpidl.relays.residuals import EARLY, LATE
from mpidl.rma.answers import Answerable, ask, take
from mpidl.transport.protocol import SIDE_DATA


class Together(Protocol):
    """Requests to one server that are asked together."""

    @property
    def questions(self) -> Sequence[Answerable]:
        """What to ask in their place."""
        ...

    def arrived(self) -> None:
        """Act on the arrival of all answers."""

    def answer(self, number: int, answer: np.ndarray) -> None:
        """Then write the answer to request `number`, bytes as uint8; there may be room for more than the answer."""


class Merging(Protocol):
    """Makes fewer messages of those that several workers send to one server, bytes as uint8."""

    def sums(self, messages: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return messages with the sum of what those of several pushes have."""
        ...

    def together(self, requests: Sequence[np.ndarray]) -> Together:
        """Return what to ask in place of requests."""
        ...


class RelayedSideData:
    """Sends the servers the side data of pushes, and passes on requests of workers.

    `requests` has the workers' requests to each shard: a worker and a message. Requests that arrive while earlier ones
    are still unanswered are sent together. `bytes_fetched` counts requests and answers.
    """

    def __init__(
        self, link: RelayLink, requests: Sequence[deque[tuple[int, np.ndarray]]], merging: Merging | None
    ) -> None:
        self._link, self._requests, self._merging = link, requests, merging
        self._questions: list[deque[Answerable]] = [deque() for _ in link.asked]
        # For each shard, the requests under way with their workers, and the number of outstanding answers.
        self._asking: list[tuple[Sequence[int], Together] | None] = [None] * len(link.asked)
        self._missing = [0] * len(link.asked)
        # The messages of the next push in a ring, for each shard.
        self._kept: dict[int, list[list[np.ndarray]]] = {ring: [[] for _ in requests] for ring in (EARLY, LATE)}
        self.bytes_fetched = 0

    def keep(self, ring: int, messages: Sequence[list[np.ndarray]]) -> None:
        """Keep what a worker that has ended has sent for each shard since its last push."""
        self._kept[ring] = [before + own for before, own in zip(self._kept[ring], messages, strict=True)]

    def messages(self, ring: int, gathered: Sequence[list[np.ndarray]]) -> list[deque[tuple[int, np.ndarray]]]:
        """Return messages with what is kept and what pushes have for each shard, as `Outboxes.send_beside` takes them.

        Nothing is kept for this ring from now on.
        """
        if gathered:
            self.keep(ring, gathered)
        kept, self._kept[ring] = self._kept[ring], [[] for _ in self._requests]
        if self._merging is None:
            return [deque() for _ in kept]
        return [deque((SIDE_DATA, message) for message in self._merging.sums(own)) for own in kept]

    def forward(self) -> bool:
        """Pass on requests and answers as far as that is possible now; return whether there were any."""
        if self._merging is None:
            return False
        for shard, waiting in enumerate(self._requests):
            if waiting and self._asking[shard] is None:
                workers, requests = zip(*waiting, strict=True)
                waiting.clear()
                together = self._merging.together(requests)
                self._asking[shard] = workers, together
                self._questions[shard].extend(together.questions)
                self._missing[shard] = len(together.questions)
        if not any(self._asking):
            return False
        sent = ask(self._link.rings[EARLY], self._link.asked, self._questions)
        for each in (each for own in sent for each in own):
            self.bytes_fetched += each.message.size + sum(target.nbytes for target in each.targets)
        taken = take(self._link.asked)
        for shard, count in enumerate(taken):
            self._missing[shard] -= count
            if count and not self._missing[shard]:
                self._answer(shard)
        return any(sent) or any(taken)

    def _answer(self, shard: int) -> None:
        """Answer the workers that have asked a shard."""
        found, self._asking[shard] = self._asking[shard], None
        assert found is not None
        workers, together = found
        together.arrived()
        for number, worker in enumerate(workers):
            self._link.answers[shard].write(worker, partial(together.answer, number))
