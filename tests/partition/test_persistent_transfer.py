"""Transfers carried out between threads."""

import numpy as np
import pytest
from distributions import arrays, moved, pairs, product
from hypothesis import given
from hypothesis import strategies as st

import threads
from mpidl.parameters import Box, Range, split
from mpidl.partition.group import PersistentMessage
from mpidl.partition.persistent_transfer import MessageBuffers, PersistentTransfer
from mpidl.partition.transfer import Transfer


def carried_out(transfer, values, before=None, rounds=1):
    """Return what an exchange makes of the sources' values on each rank, or adds of it to what was there before."""

    def work(group):
        own = values[group.rank]
        taken = [
            np.full(box.shape, np.nan) if before is None else before[group.rank][number]
            for number, box in enumerate(transfer.target[group.rank])
        ]
        exchange = PersistentTransfer(transfer, group, np, own, taken, 3, MessageBuffers(np), adds=before is not None)
        for _ in range(rounds):
            exchange.start()
            exchange.finish()
            exchange.complete()
        exchange.free()
        return taken

    return threads.run(len(transfer.source), work)


@given(pairs(), st.integers(0, 99))
def test_sums_are_those_of_the_definition(case, seed):
    shape, source, target = case
    transfer = Transfer(source, target)
    values = arrays(transfer.source, seed)
    for found, expected in zip(carried_out(transfer, values, rounds=2), moved(shape, transfer, values), strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@given(pairs(), st.integers(0, 99))
def test_sums_are_added_to_what_is_there(case, seed):
    shape, source, target = case
    transfer = Transfer(source, target)
    values, before = arrays(transfer.source, seed), arrays(transfer.target, seed + 1)
    expected = moved(shape, transfer, values)
    found = carried_out(transfer, values, [[each.copy() for each in rank] for rank in before], rounds=2)
    for one, other, start in zip(found, expected, before, strict=True):
        for a, b, c in zip(one, other, start, strict=True):
            np.testing.assert_array_equal(a, c + 2 * b)


@given(pairs(), st.integers(0, 99))
def test_the_adjoint_identity_holds(case, seed):
    _, source, target = case
    transfer = Transfer(source, target)
    x, y = arrays(transfer.source, seed), arrays(transfer.target, seed + 1)
    assert product(carried_out(transfer, x), y) == product(x, carried_out(transfer.adjoint, y))


@pytest.mark.parametrize("values", [np.array([1e16, 1.0, -1e16, 1.0]), np.array([0.1, 0.2, 0.3, 0.4])])
def test_summands_are_added_in_the_order_of_ranks(values):
    everywhere = [Box((Range(0, 3),))] * len(values)
    found = carried_out(Transfer(everywhere, everywhere), [[np.full(3, value)] for value in values])
    expected = values[0]
    for value in values[1:]:
        expected = expected + value
    assert all(np.array_equal(each, np.full(3, expected)) for (each,) in found)


class Recording:
    """The group of a rank alone that notes the arrays of messages."""

    size = 2

    def __init__(self, rank):
        self.rank, self.sent, self.received = rank, [], []

    def send(self, to, array, tag):
        self.sent.append(array)
        return PersistentMessage(*[lambda: None] * 3)

    def receive(self, source, array, tag):
        self.received.append(array)
        return PersistentMessage(*[lambda: None] * 3)


def recorded(transfer, rank, sources, target, tag=0, memory=None):
    """Return the arrays that a rank sends and receives."""
    group = Recording(rank)
    PersistentTransfer(transfer, group, np, sources, [target], tag, memory or MessageBuffers(np))
    return group.sent, group.received


def test_what_is_contiguous_is_neither_packed_nor_unpacked():
    """Shares of the samples travel from array to array; columns are packed, rows of one sample are not."""
    shares = [Box((part, Range(0, 6))) for part in split(5, 2)]
    source, target = np.zeros((3, 6)), np.zeros((5, 6))
    (sent,), (received,) = recorded(Transfer(shares, [Box.whole((5, 6))] * 2), 0, [source], target)
    assert np.shares_memory(sent, source)
    assert np.shares_memory(received, target)
    assert (sent.size, received.size) == (18, 12)
    columns = [Box((Range(0, 5), part)) for part in split(6, 2)]
    source = np.zeros((5, 3))
    (sent,), (received,) = recorded(Transfer(columns, [Box.whole((5, 6))] * 2), 0, [source], target)
    assert np.shares_memory(sent, source)
    assert not np.shares_memory(received, target)
    assert received.flags.c_contiguous


def test_parts_that_follow_one_another_are_one_message():
    """A flat range of a tensor is several boxes, which lie side by side in the vector and in the tensor."""
    vector, tensor = np.zeros(12), np.zeros((4, 5))
    whole = Box.whole((4, 5))
    pieces = (Box((Range(0, 1), Range(0, 5))), Box((Range(1, 2), Range(0, 3))))
    rest = (Box((Range(1, 2), Range(3, 5))), Box((Range(2, 4), Range(0, 5))))
    gather = Transfer([pieces, rest], [whole, whole])
    first = [vector[:5].reshape(1, 5), vector[5:8].reshape(1, 3)]
    second = [vector[:2].reshape(1, 2), vector[2:].reshape(2, 5)]
    for rank, sources, size in ((0, first, 8), (1, second, 12)):
        (sent,), (received,) = recorded(gather, rank, sources, tensor)
        assert np.shares_memory(sent, vector)
        assert np.shares_memory(received, tensor)
        assert (sent.size, received.size) == (size, 20 - size)


def test_packed_messages_have_the_memory_of_the_largest():
    """A gradient travels in the memory in which the value did, and a smaller batch in that of a larger one."""
    memory, used = MessageBuffers(np), []
    for samples in (6, 4):
        columns = [Box((Range(0, samples), part)) for part in split(6, 2)]
        gather = Transfer(columns, [Box.whole((samples, 6))] * 2)
        source, target = np.zeros((samples, 3)), np.zeros((samples, 6))
        used += recorded(gather, 0, [source], target, 4, memory)[1]
        used += recorded(gather.adjoint, 0, [target], source, 5, memory)[0]
    assert [each.size for each in used] == [18, 18, 12, 12]
    assert all(np.shares_memory(each, used[0]) for each in used)
