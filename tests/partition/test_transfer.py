"""What moves between ranks, as a plan."""

import numpy as np
import pytest
from distributions import pairs
from hypothesis import given
from hypothesis import strategies as st

from mpidl.parameters import Box, Range, split
from mpidl.partition.transfer import Transfer


def line(*bounds):
    return [None if each is None else Box((Range(*each),)) for each in bounds]


@given(pairs())
def test_what_is_received_is_what_is_sent(case):
    _, source, target = case
    transfer = Transfer(source, target)
    ranks = range(len(source))
    sends = sorted((rank, to, box) for rank in ranks for to, box in transfer.sends(rank))
    taken = ((each.rank, rank, each.box) for rank in ranks for each in transfer.summands(rank)[0])
    assert sends == sorted(each for each in taken if each[0] != each[1])
    assert all(rank != to and box.size for rank, to, box in sends)
    assert transfer.moved.sum() == sum(box.size for *_, box in sends)
    for rank in ranks:
        assert transfer.sent(rank) == sum(box.size for giver, _, box in sends if giver == rank)
        assert transfer.received(rank) == sum(box.size for _, to, box in sends if to == rank)
        assert transfer.counts[rank, rank] == sum(
            each.box.size for each in transfer.summands(rank)[0] if each.rank == rank
        )
        assert transfer.rests(rank) == (
            transfer.source[rank] == transfer.target[rank] and not any(rank in each[:2] for each in sends)
        )
    assert np.array_equal(transfer.adjoint.counts, transfer.counts.T)


@given(pairs())
def test_summands_cover_the_target_once_in_the_order_of_ranks(case):
    shape, source, target = case
    transfer = Transfer(source, target)
    for rank in range(len(source)):
        summands, missing = transfer.summands(rank)
        seen = np.zeros(shape, int)
        for each in summands:
            for copied in each.copied:
                at = (*copied.slices(Box.whole(shape)), ...)
                assert not seen[at].any()
                seen[at] = 1
            for added in each.added:
                assert seen[(*added.slices(Box.whole(shape)), ...)].all()
            assert sum(part.size for part in each.copied + each.added) == each.box.size
        for box in missing:
            seen[(*box.slices(Box.whole(shape)), ...)] += 1
        expected = np.zeros(shape, int)
        for box in transfer.target[rank]:
            expected[(*box.slices(Box.whole(shape)), ...)] = 1
        assert np.array_equal(seen, expected)
        assert [each.rank for each in summands] == sorted(each.rank for each in summands)


@given(st.integers(1, 40), st.integers(1, 7))
def test_an_all_gather_sends_each_part_to_all_others(size, ranks):
    gather = Transfer([Box((part,)) for part in split(size, ranks)], [Box((Range(0, size),))] * ranks)
    assert gather.moved.sum() == (ranks - 1) * size
    scatter = gather.adjoint
    assert scatter.moved.sum() == (ranks - 1) * size
    for rank, part in enumerate(split(size, ranks)):
        assert gather.received(rank) == size - part.size
        assert scatter.received(rank) == (ranks - 1) * part.size
        assert gather.rests(rank) == (ranks == 1)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))
def test_halos_are_what_the_kernel_reaches(ranks, halo, width):
    """Rows of a valid convolution: neighbours exchange `halo` rows, and nothing else."""
    rows = 4 * ranks
    source = [Box((part, Range(0, width))) for part in split(rows, ranks)]
    target = [
        Box((Range(max(0, part.start - halo), min(rows, part.stop + halo)), Range(0, width)))
        for part in split(rows, ranks)
    ]
    assert Transfer(source, target).moved.sum() == 2 * (ranks - 1) * halo * width


def test_what_nobody_gives_is_missing():
    transfer = Transfer(line((0, 2), None), line((1, 5), (5, 6)))
    (summand,), missing = transfer.summands(0)
    assert (summand.rank, summand.copied, missing) == (0, line((1, 2)), line((2, 5)))
    assert transfer.summands(1) == ([], line((5, 6)))


def test_distributions_are_over_the_same_ranks():
    with pytest.raises(ValueError, match="a source on 1 ranks, a target on 2"):
        Transfer([None], [None, None])
