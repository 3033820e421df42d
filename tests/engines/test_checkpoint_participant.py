"""When a worker looks for orders to save."""

import time
from types import SimpleNamespace

import pytest

from mpidl.algorithms.replica_state import ReplicaState
from mpidl.engines.mpi.checkpoint_participant import LOOK_EVERY, CheckpointParticipant
from mpidl.engines.mpi.request_handler import CheckpointSource, RequestHandler
from mpidl.transport.protocol import Order, Phase


class Link:
    """The coordinator's numbers: each recent order is as old as the last look."""

    def __init__(self, interval):
        self._interval, self.looks, self.numbers, self._seen = interval, 0, (0, 0), (0, 0)
        self._asked = None
        self.orders = self.reports = self

    def interval(self, shortest):
        return self._interval * shortest / LOOK_EVERY

    def recent(self):
        self.looks += 1
        self._seen, self._asked = self._asked or self.numbers, self.numbers
        return Order(self._seen[0], 0, Phase.TRAIN)

    def read(self):
        self._seen = self.numbers
        return Order(self._seen[0], 0, Phase.TRAIN)

    def taken(self):
        return self._seen[1]


@pytest.fixture
def made(tmp_path):
    """Return a worker's part in checkpoints that only notes what it obeys, and its link."""

    def make(interval, together=False, leads=True):
        lead = SimpleNamespace(leads=leads, share=lambda decide: decide(), largest=lambda number: number, partition=0)
        obeyed, nothing = [], SimpleNamespace(replicas={}, shards={}, taken=0)
        source = CheckpointSource()
        source.together, source.cut = together, lambda order, *_: (obeyed.append(order), nothing)[1]
        handler = RequestHandler(source)
        handler.lead = lead
        schedule = SimpleNamespace(reductions=0)
        loader = SimpleNamespace(
            unfinished=lambda unused: [], own_position=lambda unused, unpushed: None, tickets=0, retaken=[],
            wait_for_ticket=lambda: None, schedule=schedule,
        )  # fmt: skip
        participant = CheckpointParticipant(0, handler, ReplicaState(), loader, lambda order: tmp_path)
        link, participant.obeyed, participant.loader = Link(interval), obeyed, loader
        participant.bind(link, wait=lambda condition: condition())
        return participant, link

    return make


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("interval", "again"), [(LOOK_EVERY, True), (3600 * LOOK_EVERY, False)])
def test_a_worker_looks_for_orders_as_often_as_its_link_says(made, interval, again, together):
    participant, link = made(interval, together)
    participant.look()
    assert link.looks == 1
    time.sleep(2 * LOOK_EVERY)
    participant.look()
    assert link.looks == 1 + again


def test_an_order_is_obeyed_once_at_the_second_look_after_it(made):
    participant, link = made(0.0)
    participant.look()
    link.numbers = (1, 0)
    participant.look()
    assert participant.obeyed == []
    for _ in range(3):
        participant.look()
    assert participant.obeyed == [1]


def test_an_order_from_before_the_first_look_is_obeyed_at_it(made):
    participant, link = made(3600.0)
    link.numbers = (1, 0)
    participant.look()
    assert participant.obeyed == [1]


def test_an_order_that_others_have_marked_is_obeyed_at_once(made):
    participant, link = made(3600.0)
    link.numbers = (4, 0)
    participant.obey_cut(4)
    assert participant.obeyed == [4]
    link.numbers = (5, 0)
    participant.obey_cut(4)
    assert participant.obeyed == [4]


def test_tickets_are_forgotten_that_were_taken_before_any_order_to_come(made):
    participant, link = made(0.0)
    participant.look()
    for ticket in (3, 7, 8):
        participant.took(ticket)
    link.numbers = (1, 8)
    participant.look()
    # What the coordinator says beside an order that isn't obeyed yet is of later tickets than this order's.
    link.numbers = (2, 9)
    participant.obey_cut(1)
    assert participant.obeyed == [2]
    assert participant.position.recent == [3, 7, 8]
    participant.look()
    assert participant.position.recent == [8]


def test_a_ticket_on_its_way_is_one_of_the_recent_ones(made):
    participant, _ = made(0.0)
    participant.took(3)
    participant.loader.wait_for_ticket = lambda: participant.took(7)
    assert participant.position.recent == [3, 7]


def test_a_rank_that_does_not_lead_its_replica_keeps_no_tickets(made):
    participant, _ = made(0.0, leads=False)
    participant.took(3)
    assert participant.position.recent == []
