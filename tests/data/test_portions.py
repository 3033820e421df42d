"""The portions of an epoch: every sample once, in a random order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data import Portions
from mpidl.data.schedule import Schedule
from mpidl.errors import UsageError

counts = st.integers(1, 200)
few = st.integers(1, 7)
seeds = st.integers(0, 2**40)


def epoch_of(portions: Portions, epoch: int) -> list[np.ndarray]:
    first = epoch * portions.per_epoch
    return [portions.indices(number) for number in range(first, first + portions.per_epoch)]


@given(counts, few, few, seeds, st.booleans(), st.integers(0, 3))
def test_every_epoch_takes_every_sample_once(samples, batch, batches, seed, contiguous, epoch):
    portions = Portions(samples, batch, batch * batches, seed, contiguous)
    taken = epoch_of(portions, epoch)
    assert np.array_equal(np.sort(np.concatenate(taken)), np.arange(samples))
    assert [len(indices) for indices in taken[:-1]] == [portions.portion] * (portions.per_epoch - 1)
    assert {portions.epoch(epoch * portions.per_epoch + k) for k in range(portions.per_epoch)} == {epoch}


@given(counts, few, few, seeds, st.booleans())
def test_batches_are_the_portion_in_order(samples, batch, batches, seed, contiguous):
    portions = Portions(samples, batch, batch * batches, seed, contiguous)
    lengths = []
    for number in range(portions.per_epoch):
        cut = portions.batches(number)
        assert np.array_equal(np.concatenate(cut), portions.indices(number))
        lengths += [len(indices) for indices in cut]
    assert lengths[:-1] == [batch] * (len(lengths) - 1)
    assert 1 <= lengths[-1] <= batch


@given(counts, few, few, seeds, st.booleans())
def test_without_the_last_batch_if_it_is_smaller(samples, batch, batches, seed, contiguous):
    keys = {"batch": batch, "portion": batch * batches, "seed": seed, "contiguous": contiguous}
    if samples < batch:
        with pytest.raises(UsageError, match=rf"^data\.drop_last: true, but {samples} training samples make no batch"):
            Portions(samples, **keys, drop_last=True)
        return
    portions, every = Portions(samples, **keys, drop_last=True), Portions(samples, **keys)
    assert portions.samples == samples // batch * batch
    taken = [each for number in range(portions.per_epoch) for each in portions.batches(number)]
    before = [each for number in range(every.per_epoch) for each in every.batches(number)]
    assert [each.tolist() for each in taken] == [each.tolist() for each in before if len(each) == batch]
    schedule = Schedule(portions, epochs=3)
    assert schedule.steps == 3 * len(taken)
    assert (
        sum(schedule.samples(each, 0, schedule.batches(each)) for each in range(portions.per_epoch)) == portions.samples
    )


def test_other_samples_are_left_out_in_each_epoch():
    portions = Portions(13, 4, 8, seed=1, drop_last=True)
    left_out = {(set(range(13)) - set(np.concatenate(epoch_of(portions, epoch)).tolist())).pop() for epoch in range(9)}
    assert len(left_out) > 3


@given(counts, few, few, few, seeds)
def test_order_does_not_depend_on_the_portion(samples, batch, one, other, seed):
    orders = [np.concatenate(epoch_of(Portions(samples, batch, batch * batches, seed), 1)) for batches in (one, other)]
    assert np.array_equal(*orders)


@given(counts, few, few, seeds)
def test_contiguous_portions_are_blocks_of_the_data(samples, batch, batches, seed):
    portions = Portions(samples, batch, batch * batches, seed, contiguous=True)
    for indices in epoch_of(portions, 2):
        assert indices.min() % portions.portion == 0
        assert indices.max() - indices.min() == len(indices) - 1


@pytest.mark.parametrize("contiguous", [False, True])
def test_epochs_and_seeds_differ(contiguous):
    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(epoch_of(Portions(301, 5, 15, seed, contiguous), epoch)).tolist()

    orders = [order(seed, epoch) for seed in (0, 1, 2**33) for epoch in (0, 1, 2)]
    assert len({tuple(each) for each in orders}) == len(orders)
    assert order(1, 2) == order(1, 2)


def test_contiguous_portions_are_shuffled_within_and_among_each_other():
    taken = epoch_of(Portions(300, 10, 50, seed=3, contiguous=True), 0)
    assert [int(indices.min()) for indices in taken] != [0, 50, 100, 150, 200, 250]
    assert len({tuple(indices - indices.min()) for indices in taken}) == len(taken)


def test_neighbouring_epochs_are_drawn_once():
    portions = Portions(100, 5, 10, seed=0)
    orders = [portions.indices(each).base for number in range(10, 40) for each in (number, number - 10)]
    assert [int(order[0]) for order in {id(order): order for order in orders}.values()] == [
        int(Portions(100, 5, 10, seed=0).indices(10 * epoch)[0]) for epoch in (1, 0, 2, 3)
    ]


def test_order_is_the_same_on_every_machine():
    # Ranks on other machines and resumed runs must agree, so these numbers must never change.
    assert Portions(11, 2, 4, seed=5).indices(4).tolist() == [5, 4, 7, 1]
    assert Portions(11, 2, 4, seed=5, contiguous=True).indices(3).tolist() == [5, 4, 6, 7]


def test_indices_can_not_be_written_over():
    for contiguous in (False, True):
        with pytest.raises(ValueError, match="read-only"):
            Portions(11, 2, 4, seed=5, contiguous=contiguous).indices(0)[0] = 0


@pytest.mark.parametrize("portion", [0, 31, 33, -32])
def test_portion_must_be_whole_batches(portion):
    with pytest.raises(UsageError, match=rf"^data\.portion: {portion}, expected a multiple of data\.batch \(32\)$"):
        Portions(100, 32, portion, seed=0)
