"""What a relay makes of its workers' pushes."""

import numpy as np

from mpidl.parameters import Range
from mpidl.relays.push_aggregator import PushAggregator
from mpidl.transport.protocol import Message

SHARDS, STATISTICS = [Range(0, 7), Range(7, 12)], [Range(5, 9)]


class Inbox:
    """Pushes of one chunk that have arrived at a shard."""

    def __init__(self, messages):
        self._messages = messages

    def waiting(self):
        return [worker for worker, messages in enumerate(self._messages) if messages]

    def pending(self, worker):
        return len(self._messages[worker])

    def head(self, worker):
        return self._messages[worker][0]

    def release(self, worker):
        del self._messages[worker][0]

    def acknowledge(self, worker):
        pass

    def taken(self, worker):
        return 0


def test_pushes_are_added_up_and_their_changes_of_statistics_averaged():
    pushes = np.random.default_rng(0).normal(size=(3, 12))
    # The first worker has pushed twice.
    sources = [[0, 1], [], [2]]
    inboxes = [
        Inbox([
            [Message(worker, push, 0, 4, pushes[source][slice(*shard)], (1, 1)) for push, source in enumerate(each)]
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
