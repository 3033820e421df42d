"""What a relay makes of its workers' pushes."""

import numpy as np

from mpidl.parameters import Range
from mpidl.relays.push_aggregator import PushAggregator
from mpidl.transport.protocol import END, REQUEST, SIDE_DATA, PushMessage

SHARDS, STATISTICS = [Range(0, 7), Range(7, 12)], [Range(5, 9)]


class Inbox:
    """Pushes of one chunk that have arrived at a shard."""

    def __init__(self, messages):
        self._messages, self._taken, self.shown = messages, [0] * len(messages), {}

    def waiting(self):
        return [worker for worker, messages in enumerate(self._messages) if messages]

    def pending(self, worker):
        return len(self._messages[worker])

    def head(self, worker):
        return self._messages[worker][0]

    def release(self, worker):
        del self._messages[worker][0]
        self._taken[worker] += 1

    def acknowledge(self, worker):
        pass

    def taken(self, worker):
        return self._taken[worker]

    def arrive(self, message):
        self._messages[message.worker].append(message)

    def show_applied(self, worker, count):
        self.shown[worker] = count


def test_pushes_are_added_up_and_their_changes_of_statistics_averaged():
    pushes = np.random.default_rng(0).normal(size=(3, 12))
    # The first worker has pushed twice.
    sources = [[0, 1], [], [2]]
    inboxes = [
        Inbox([
            [PushMessage(worker, push, 0, 4, pushes[source][slice(*shard)], (1, 1)) for push, source in enumerate(each)]
            for worker, each in enumerate(sources)
        ])
        for shard in SHARDS
    ]  # fmt: skip
    aggregator = PushAggregator(inboxes, SHARDS, [7, 5], np.float64, 3, lambda: 0.0, STATISTICS)
    while aggregator.take():
        pass
    expected = pushes.sum(axis=0)
    expected[5:9] /= 3
    np.testing.assert_allclose(aggregator.swap().vector, expected, rtol=1e-14)


def test_what_pushes_have_beside_vectors_is_in_their_sum_and_requests_wait_for_none():
    def message(worker, push, chunk, size=3):
        return PushMessage(worker, push, chunk, 4, np.full(size, 10 * worker + push), (push, push))

    # Each shard has a request of each worker, and two pushes of one chunk, of which some have a message beside.
    inboxes = [
        Inbox([
            [message(0, 0, REQUEST), message(0, 0, SIDE_DATA), message(0, 0, 0, size), message(0, 1, SIDE_DATA)],
            [message(1, 0, 0, size), message(1, 1, REQUEST), message(1, 1, 0, size)],
        ])
        for size in (7, 5)
    ]  # fmt: skip
    aggregator = PushAggregator(inboxes, SHARDS, [7, 5], np.float64, 2, lambda: 0.0)

    def take():
        while aggregator.take():
            pass

    aggregator.closing = True
    take()
    # Pushes wait, and what is before them is shown as applied.
    assert [[worker for worker, _ in own] for own in aggregator.requests] == [[0], [0]]
    assert all((inbox.shown, inbox.pending(0)) == ({0: 2}, 2) for inbox in inboxes)
    aggregator.closing = False
    take()
    assert [[worker for worker, _ in own] for own in aggregator.requests] == [[0, 1], [0, 1]]
    # A worker sees no more as applied before its pushes are.
    assert all(inbox.shown == {0: 2} for inbox in inboxes)
    for inbox, size in zip(inboxes, (7, 5), strict=True):
        inbox.arrive(message(0, 1, 0, size))
    take()
    assert aggregator.whole
    gathered = aggregator.swap()
    assert [[each.tolist() for each in own] for own in gathered.side_data] == [[[0] * 3, [1] * 3]] * 2
    assert gathered.vector.tolist() == [0 + 1 + 10 + 11] * 12
    for inbox in inboxes:
        inbox.arrive(message(1, 2, REQUEST))
        inbox.arrive(message(0, 2, SIDE_DATA))
        inbox.arrive(message(0, 2, END))
    take()
    assert all(inbox.shown == {0: 2} for inbox in inboxes)
    aggregator.show_applied(gathered, 1.0)
    assert all(inbox.shown == {0: 6, 1: 4} for inbox in inboxes)
    assert aggregator.empty
    # What comes behind the last push belongs to none.
    assert aggregator.next_message().chunk == END
    assert [[each.tolist() for each in own] for own in aggregator.rest(0)] == [[[2] * 3]] * 2
