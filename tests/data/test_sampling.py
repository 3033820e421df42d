"""The order of samples: by a user's own sampler, and of replicas with samples of their own."""

import itertools
import random
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_data import Numbers

from mpidl.data import Indexed, Portions, held_out
from mpidl.data.dataset import ArraySplit
from mpidl.data.loader import Loader
from mpidl.data.sampling import OwnSampler
from mpidl.data.schedule import Schedule
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


sizes = st.tuples(st.integers(3, 60), st.integers(1, 7), st.integers(1, 4))


def dealt(samples, owners, random):
    """Return the samples of each owner, at least one."""
    bounds = np.sort(random.choice(np.arange(1, samples), owners - 1, replace=False))
    return np.split(random.permutation(samples), bounds)


class Cluster:
    """Replicas that take portions at any speed, and count what they have computed."""

    def __init__(self, portions, own, epochs, contiguous, taken=0, before=None):
        self.schedule = Schedule(portions, epochs=epochs)
        split = ArraySplit(np.zeros((portions.samples, 1)), np.zeros(portions.samples, int))
        split.contiguous = contiguous
        self.tickets = itertools.count(taken)
        self.samplers = [OwnSampler(portions, samples, owner) for owner, samples in enumerate(own)]
        self.before = before or [((), None)] * len(own)
        for sampler, (_, position) in zip(self.samplers, self.before, strict=True):
            sampler.resume(position, computed=True)
        self.loaders = [
            Loader(self.schedule, split, self.tickets.__next__, lambda epoch: None, working, sampler=sampler)
            for sampler, (working, _) in zip(self.samplers, self.before, strict=True)
        ]
        self.active = list(range(len(own)))

    def run(self, data, used, most):
        """Let replicas compute up to `most` batches in any order."""
        for _ in range(most):
            if not self.active:
                return
            replica = data.draw(st.sampled_from(self.active))
            batch = self.loaders[replica].next()
            if batch is None:
                self.active.remove(replica)
            else:
                used[replica].update(batch.indices.tolist())

    def position(self):
        return [(loader.unfinished(), loader.own_position(0, 0)) for loader in self.loaders]


def check(used, own, samples, epochs):
    """Each sample was used as often as any other of its owner's, or once more; the run had its length."""
    for count, samples_of_owner in zip(used, own, strict=True):
        assert count.keys() <= set(samples_of_owner.tolist())
        times = [count[sample] for sample in samples_of_owner.tolist()]
        assert max(times) - min(times) <= 1
    assert sum(count.total() for count in used) == epochs * samples


any_run = given(
    size=sizes, epochs=st.integers(1, 4), owners=st.integers(1, 3), contiguous=st.booleans(), data=st.data()
)


def divided(size, owners, contiguous, data):
    """Return the samples of each owner, the portions of all, and a counter for the samples that each owner uses."""
    samples, batch, batches = size
    own = dealt(samples, owners, np.random.default_rng(data.draw(st.integers(0, 99))))
    return own, Portions(samples, batch, batch * batches, 3, contiguous), [Counter() for _ in own]


@any_run
def test_replicas_of_any_speed_use_their_own_samples_alike(size, epochs, owners, contiguous, data):
    own, portions, used = divided(size, owners, contiguous, data)
    Cluster(portions, own, epochs, contiguous).run(data, used, 1 << 30)
    check(used, own, size[0], epochs)


@any_run
def test_replicas_that_are_stopped_go_on_with_their_own_samples(size, epochs, owners, contiguous, data):
    own, portions, used = divided(size, owners, contiguous, data)
    taken, before = 0, None
    for most in (data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40)), 1 << 30):
        cluster = Cluster(portions, own, epochs, contiguous, taken, before)
        cluster.run(data, used, most)
        before, taken = cluster.position(), next(cluster.tickets)
    check(used, own, size[0], epochs)


@given(size=sizes, epochs=st.integers(1, 3), contiguous=st.booleans())
def test_one_replica_with_all_samples_takes_the_order_of_undivided_data(size, epochs, contiguous):
    samples, batch, batches = size
    portions = Portions(samples, batch, batch * batches, 3, contiguous)
    schedule = Schedule(portions, epochs=epochs)
    sampler = OwnSampler(portions, np.arange(samples), 0)
    for ticket in range(schedule.tickets):
        found = sampler.begin(schedule.assignment(ticket))
        for own, other in zip(found, portions.minibatches(ticket), strict=True):
            assert (own.indices.tolist(), *own[1:]) == (other.indices.tolist(), *other[1:])


@given(data=st.data())
def test_what_was_not_pushed_is_drawn_again_unless_its_gradients_are_kept(data):
    portions = Portions(29, 3, 6, 1)
    sampler = OwnSampler(portions, np.arange(4, 21), 1)
    order = [each for number in range(8) for each in _drawn(sampler, portions, number)]
    sampler.resume(None)
    drawn = [each for number in range(3) for each in _drawn(sampler, portions, number)]
    unused = data.draw(st.integers(0, 18))
    unpushed = data.draw(st.integers(0, 18 - unused))
    position = sampler.position(unused, unpushed)
    for computed, again in ((True, unused), (False, unused + unpushed)):
        sampler.resume(position, computed)
        if computed:
            assert sampler.position(0, unpushed) == position
        coming = [each for number in range(5) for each in _drawn(sampler, portions, number)]
        assert coming == order[len(drawn) - again : len(order) - again]


def test_owners_have_orders_of_their_own():
    portions = Portions(40, 4, 20, 3)
    orders = [_drawn(OwnSampler(portions, np.arange(20), owner), portions, 0) for owner in range(3)]
    assert len(set(map(tuple, orders))) == 3


def test_the_epoch_of_a_batch_is_that_of_its_first_sample():
    portions = Portions(20, 4, 8, 3)
    sampler = OwnSampler(portions, np.arange(5), 1)
    batches = [batch for number in range(3) for batch in sampler.begin(Schedule(portions, epochs=1).assignment(number))]
    assert [batch.epoch for batch in batches] == [start // 5 for start in range(0, 20, 4)]
    assert [batch.number for batch in batches] == list(range(5))


def _drawn(sampler, portions, number):
    part = Schedule(portions, epochs=9).assignment(number)
    return [index for batch in sampler.begin(part) for index in batch.indices.tolist()]
