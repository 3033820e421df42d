"""Rounds of a deterministic server: a push of every worker that trains, and at once what is between pushes."""

from pathlib import Path

import numpy as np

from mpidl.parameters import Range
from mpidl.roles.served import ServedShard
from mpidl.rules import Sgd
from mpidl.shards import ledger
from mpidl.shards.policies import ApplyAtOnce
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.transport.protocol import END, MARK, REQUEST, PushMessage


class Rings:
    """A transport, its link and its inbox; messages of `late` arrive when their workers have been found not to wait."""

    def __init__(self, rings, late):
        self.rings, self._late, self.rank = rings, late, 1
        self.inbox = self.reports = self
        self.vectors, self.ledger = {"parameters": np.zeros(1)}, np.zeros(ledger.size(2), np.int64)

    def waiting(self):
        found = [worker for worker, ring in enumerate(self.rings) if ring]
        for worker, ring in enumerate(self.rings):
            if not ring and self._late.get(worker):
                ring.append(self._late[worker].pop(0))
        return found

    def pending(self, worker):
        return len(self.rings[worker])

    def head(self, worker):
        return PushMessage(worker, 0, self.rings[worker][0], 0, np.ones(1), (0, 0))

    def server(self, number):
        return self

    def ignore(self, *arguments, **options):
        """Do nothing."""

    show_clock = show_cut = post = acknowledge = ignore

    def release(self, worker):
        self.rings[worker].pop(0)


def served(rings, late):
    shard = Shard(Range(0, 1), np.zeros(1), ScheduledRule(Sgd(1.0)), ApplyAtOnce(), 1)
    found = ServedShard(
        0, shard, 0, Path(), lambda order: Path(), workers=2, portion=int, deterministic=True, save=print
    )
    found.bind(Rings(rings, late))
    applied = []
    found.apply = lambda message: applied.append((message.worker, message.chunk))
    return found, applied


def test_a_round_has_a_chunk_of_every_worker():
    rings = [[0, 0], []]
    server, applied = served(rings, {})
    assert not server.round()
    rings[1].append(0)
    assert server.round()
    assert applied == [(0, 0), (1, 0)]
    assert not server.round()


def test_what_is_between_pushes_waits_for_no_worker():
    server, applied = served([[0], [REQUEST, MARK, 0]], {})
    assert all(server.round() for _ in range(3))
    assert applied == [(1, REQUEST), (1, MARK), (0, 0), (1, 0)]


def test_a_request_that_arrives_late_is_not_taken_for_a_push():
    server, applied = served([[0], []], {1: [REQUEST, 0]})
    for _ in range(5):
        server.round()
    assert applied == [(1, REQUEST), (0, 0), (1, 0)]


def test_the_end_of_a_worker_is_in_a_round():
    server, applied = served([[0], [END]], {})
    assert server.round()
    assert applied == [(0, 0), (1, END)]
