"""Orders of the samples by a user's own sampler, and data without a test split."""

import random
import re

import numpy as np
import pytest
from own_data import Numbers

from mpidl.data import Indexed, held_out
from mpidl.data.schedule import Portions
from mpidl.errors import MpidlError, UsageError


class Shuffled:
    """Half of the samples, at random, by Python's and NumPy's generators."""

    def __init__(self, samples=20):
        self.samples, self.times = samples, 0

    def __len__(self):
        return self.samples // 2

    def __iter__(self):
        self.times += 1
        order = list(range(self.samples))
        random.shuffle(order)
        # The first is the number of the epoch.
        yield self.times - 1
        yield from np.random.permutation(order)[: len(self) - 1].tolist()  # noqa: NPY002


class Distributed(Shuffled):
    """The epoch that it was told, again and again."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([self.epoch] * len(self))


def order(sampler, samples=20):
    return Indexed(Numbers(samples), sampler=sampler).open().order


def test_an_epochs_order_is_the_samplers_on_every_rank():
    sampler = Shuffled()
    one, other = order(sampler), order(sampler)
    found = [one(3, epoch).tolist() for epoch in (0, 1, 2, 1)]
    assert found[3] == found[1] == other(3, 1).tolist()
    assert found[2] == other(3, 2).tolist() != other(4, 2).tolist()
    assert found[1][1:] != found[2][1:]
    assert [each[0] for each in found] == [0, 1, 2, 1]
    assert (one.length, sampler.times) == (10, 0)


def test_generators_go_on_as_if_nothing_had_been_drawn():
    random.seed(1), np.random.seed(1)  # noqa: NPY002
    expected = random.random(), np.random.random()  # noqa: NPY002
    random.seed(1), np.random.seed(1)  # noqa: NPY002
    order(Shuffled())(0, 0)
    assert (random.random(), np.random.random()) == expected  # noqa: NPY002


def test_epochs_are_told():
    assert order(Distributed())(0, 4).tolist() == [4] * 10
    assert order(lambda epoch: np.arange(epoch, epoch + 5))(0, 4).tolist() == [4, 5, 6, 7, 8]


def test_portions_follow_the_order():
    dataset = Indexed(Numbers(20), sampler=list(range(19, 8, -1))).open()
    portions = Portions(dataset.order.length, batch=2, portion=4, seed=0, order=dataset.order)
    assert portions.per_epoch == 3
    assert [portions.indices(number).tolist() for number in (1, 2, 3)] == [
        [15, 14, 13, 12], [11, 10, 9], [19, 18, 17, 16],
    ]  # fmt: skip


class Torn(Shuffled):
    def __iter__(self):
        raise KeyError("no such class")


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        ([[0, 1], [2, 3]], "found [0, 1], expected the index of a sample"),
        ([0.5, 1.5], "found 0.5, expected the index of a sample"),
        ([0, 20], "samples 0 to 20, expected indices from 0 to 19"),
        ([-1, 2], "samples -1 to 2, expected indices from 0 to 19"),
        (lambda epoch: np.arange(5 + epoch), "6 samples, expected 5 as its length says"),
        (Torn(), "raised KeyError: 'no such class'"),
    ],
)
def test_what_is_wrong_with_a_sampler(sampler, text):
    with pytest.raises(MpidlError, match=f"^Indexed.sampler: epoch [01].*{re.escape(text)}"):
        order(sampler)(0, 1)


def test_what_is_no_sampler():
    for sampler, text in ((7, "found an int"), ([], "no samples, expected at least one"), (iter([1]), "with __len__")):
        with pytest.raises(UsageError, match=re.escape(text)):
            order(sampler)


def test_a_sampler_and_a_share_for_validation():
    with pytest.raises(UsageError, match=r"data.validation: 0.1, but the data have a sampler"):
        held_out(Indexed(Numbers(), sampler=[0, 1]).open(), 0.1, 4, 0)


def test_splits_of_indexed_data():
    dataset = Indexed(Numbers(20), validation=Numbers(4)).open()
    assert list(dataset.splits) == ["train", "validation"]
    assert dataset.validation.gather(np.array([3])).inputs.tolist() == [[3, 3, 3]]
    assert Indexed(Numbers(20)).open().test is None
    with pytest.raises(UsageError, match=r"^data: validation: found an int, expected one with __len__"):
        Indexed(Numbers(20), validation=3).open()


def test_a_samplers_own_generator_is_seeded_from_the_run_and_the_epoch():
    torch = pytest.importorskip("torch")

    def orders(state):
        sampler = torch.utils.data.RandomSampler(range(20), generator=torch.Generator().manual_seed(state))
        found = order(sampler)
        return [found(seed, epoch).tolist() for seed, epoch in ((3, 0), (3, 1), (4, 0))]

    assert orders(1) == orders(2)
    assert len(set(map(tuple, orders(1)))) == 3
