"""The order in which any number of workers use the data of a run, stopped anywhere and resumed."""

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data import Portions
from mpidl.data.dataset import ArraySplit, Split
from mpidl.data.loader import Loader
from mpidl.data.schedule import Assignment, Schedule

sizes = st.tuples(st.integers(1, 60), st.integers(1, 7), st.integers(1, 4))


def make(samples, batch, batches, contiguous=False, **options):
    return Schedule(Portions(samples, batch, batch * batches, seed=3, contiguous=contiguous), **options)


def numbered(samples, contiguous=False):
    split = ArraySplit(np.zeros((samples, 1), np.float32), np.arange(samples))
    split.contiguous = contiguous
    return split


def loaders(schedule, workers, contiguous=False, on_epoch=lambda epoch: None):
    """Return the loaders of workers that share one counter."""
    tickets = iter(range(1 << 30))
    split = numbered(schedule.portions.samples, contiguous)
    return [Loader(schedule, split, lambda: next(tickets), on_epoch) for _ in range(workers)]


@given(size=sizes, epochs=st.integers(1, 4), workers=st.integers(1, 4), contiguous=st.booleans(), data=st.data())
def test_workers_of_any_speed_use_every_sample_once_an_epoch(size, epochs, workers, contiguous, data):
    seen = []
    schedule = make(*size, contiguous, epochs=epochs)
    active = loaders(schedule, workers, contiguous, seen.append)
    used: Counter[int] = Counter()
    while active:
        loader = data.draw(st.sampled_from(active))
        batch = loader.next()
        if batch is None:
            active.remove(loader)
        else:
            used.update(batch.indices.tolist())
    assert used == dict.fromkeys(range(size[0]), epochs)
    assert sorted(seen) == list(range(1, epochs))


@given(size=sizes, steps=st.integers(1, 90))
def test_a_run_of_steps_ends_after_that_many_batches(size, steps):
    schedule = make(*size, steps=steps)
    (loader,) = loaders(schedule, 1)
    batches = 0
    while loader.next() is not None:
        batches += 1
    assert batches == steps
    assert schedule.epochs == -(-steps // schedule.portions.steps_per_epoch)


@given(size=sizes, epochs=st.integers(1, 3), workers=st.integers(1, 3), contiguous=st.booleans(), data=st.data())
def test_a_resumed_run_uses_what_the_stopped_one_left(size, epochs, workers, contiguous, data):
    """Stopped twice, anywhere."""
    used: Counter[int] = Counter()
    position = {"next_portion": 0, "unfinished": []}
    for _ in range(3):
        schedule = make(*size, contiguous, epochs=epochs, **position)
        active = loaders(schedule, workers, contiguous)
        running, taken = list(active), data.draw(st.integers(0, 40))
        for _ in range(taken):
            if running:
                loader = data.draw(st.sampled_from(running))
                batch = loader.next()
                if batch is None:
                    running.remove(loader)
                else:
                    used.update(batch.indices.tolist())
        next_portion, waiting = schedule.position(min(schedule.tickets, sum(loader.tickets for loader in active)))
        unfinished = [pair for loader in active for pair in loader.unfinished()]
        position = {"next_portion": next_portion, "unfinished": sorted(waiting + unfinished)}
    (loader,) = loaders(make(*size, contiguous, epochs=epochs, **position), 1, contiguous)
    while (batch := loader.next()) is not None:
        used.update(batch.indices.tolist())
    assert used == dict.fromkeys(range(size[0]), epochs)


def test_a_position_names_the_portions_that_were_passed_over():
    schedule = make(20, 2, 2, epochs=2, next_portion=3, unfinished=[(1, 1), (2, 0)])
    assert schedule.position(0) == (3, [(1, 1), (2, 0)])
    assert schedule.position(1) == (3, [(2, 0)])
    assert schedule.position(4) == (5, [])
    assert schedule.position(1, {4}) == (6, [(2, 0), (3, 0), (4, 0)])
    assert schedule.position(9, {11}) == (10, [])  # there are ten portions: nobody was given the others
    assert schedule.position(50) == (10, [])


@given(size=sizes, first=st.integers(0, 3), last=st.integers(0, 5), place=st.integers(0, 200))
def test_the_samples_of_a_part_are_those_of_its_batches(size, first, last, place):
    schedule = make(*size, epochs=2)
    portion = place % (2 * schedule.portions.per_epoch)
    batches = schedule.portions.batches(portion)
    assert len(batches) == schedule.batches(portion)
    last = max(first, last)
    assert schedule.samples(portion, first, last) == sum(map(len, batches[first:last]))


def test_a_part_ends_where_the_run_ends():
    schedule = make(20, 2, 3, steps=14)  # epochs of ten batches, in portions of three and a last one of one
    assert [schedule.batches(portion) for portion in range(5)] == [3, 3, 3, 1, 3]
    assert schedule.part(4, 1) == Assignment(4, 1, 3)
    assert schedule.part(5, 0) == Assignment(5, 0, 1)
    assert schedule.part(5, 2) == Assignment(5, 2, 2)
    assert schedule.assignment(6) is None


@given(size=sizes, contiguous=st.booleans(), before=st.integers(0, 30), unused=st.booleans())
def test_a_loader_goes_on_where_another_was(size, contiguous, before, unused):
    """First come the portions that the other had taken, from the batch on that was not used; tickets are its own."""
    schedule = make(*size, contiguous, epochs=2)
    tickets = iter(range(1 << 30))
    arguments = (schedule, numbered(size[0], contiguous), lambda: next(tickets), lambda epoch: None)
    first, used = Loader(*arguments), []
    for _ in range(before):
        if (batch := first.next()) is not None:
            used.append(batch.number)
    again = int(unused and bool(used) and first.current is not None)
    del used[len(used) - again :]
    resumed = first.unfinished(again)
    second = Loader(*arguments, resumed)
    assert second.unfinished() == resumed
    while (batch := second.next()) is not None:
        used.append(batch.number)
    assert second.unfinished() == []
    assert len(used) == len(set(used)) == schedule.steps
    assert first.tickets + second.tickets == schedule.tickets


def test_a_loader_asks_for_a_ticket_with_the_last_batch_of_a_portion_and_takes_it_once():
    asked, taken = [], []
    loader = Loader(
        make(20, 2, 2, contiguous=False, epochs=1), numbered(20, False), lambda: taken.append(0) or len(taken) - 1,
        lambda epoch: None, ask=lambda: asked.append(0) or True,
    )  # fmt: skip
    calls = []
    for _ in range(4):
        loader.next()
        calls.append((len(asked), len(taken)))
        if len(calls) == 2:
            loader.give_back()
            loader.next()
    assert calls == [(0, 1), (1, 1), (1, 2), (2, 2)]
    # A rank that asks what has been taken has to wait for the ticket.
    assert loader.unfinished() == loader.unfinished() == [(2, 0)]
    assert (len(taken), loader.tickets) == (3, 3)
    loader.next()
    assert loader.current.portion == 2
    assert (len(asked), len(taken)) == (2, 3)


@given(size=sizes, contiguous=st.booleans(), again=st.lists(st.booleans(), min_size=1, max_size=8))
def test_a_batch_that_is_given_back_comes_again(size, contiguous, again):
    """Nothing else changes: what has been taken and prepared, and where another loader would go on."""
    schedule, tickets = make(*size, contiguous, epochs=2), [itertools.count(), itertools.count()]
    split, prepared = numbered(size[0], contiguous), ([], [])
    split.lookahead = 3
    plain, other = (
        Loader(schedule, split, each.__next__, lambda epoch: None, prepare=True, ask=lambda: True) for each in tickets
    )
    for number in itertools.count():
        split.prepare = lambda indices, epoch: prepared[0].append(indices.tolist())
        batch = plain.next()
        split.prepare = lambda indices, epoch: prepared[1].append(indices.tolist())
        found = other.next()
        if batch is None:
            break
        if again[number % len(again)]:
            rest = other.unfinished(1)
            other.give_back()
            assert other.unfinished() == rest
            found = other.next()
        assert (found.number, found.indices.tolist()) == (batch.number, batch.indices.tolist())
    assert found is None
    assert prepared[0] == prepared[1]
    assert other.tickets == plain.tickets == schedule.tickets


def test_a_stopped_loader_hands_out_nothing_and_knows_the_rest():
    (loader,) = loaders(make(20, 2, 3, contiguous=True, epochs=1), 1, contiguous=True)
    loader.next()
    loader.stop()
    assert loader.next() is None
    assert loader.unfinished() == [(0, 1), (1, 0)]


def test_the_next_portion_is_prefetched_where_portions_are_contiguous(monkeypatch):
    schedule, split, hints = make(20, 2, 2, contiguous=True, epochs=1), numbered(20, contiguous=True), []
    monkeypatch.setattr(split, "prefetch", lambda indices: hints.append(indices.tolist()))
    Loader(schedule, split, itertools.count().__next__, lambda epoch: None).next()
    assert hints == [schedule.portions.indices(0).tolist(), schedule.portions.indices(1).tolist()]


def test_epochs_open_with_their_first_portion_once():
    schedule = make(10, 2, 2, epochs=3, next_portion=4, unfinished=[(3, 1)])
    assert schedule.portions.per_epoch == 3
    assignments = [schedule.assignment(ticket) for ticket in range(7)]
    assert assignments[0] == Assignment(3, 1, 2)
    opened, portions = [], []
    (loader,) = loaders(schedule, 1, on_epoch=lambda epoch: opened.append((epoch, loader.current.portion)))
    while loader.next() is not None:
        portions.append(loader.current.portion)
    assert (opened, list(dict.fromkeys(portions))) == ([(2, 6)], [3, 4, 5, 6, 7, 8])
    assert assignments[6] is None
    assert schedule.tickets == 6


def test_tickets_before_an_epoch_tell_a_warm_start():
    schedule = make(10, 2, 1, epochs=4)
    assert [schedule.tickets_before(e) for e in (0, 0.5, 1.0, 3.9, 9)] == [0, 2, 5, 19, 20]
    resumed = make(10, 2, 1, epochs=4, next_portion=7, unfinished=[(5, 0)])
    assert [resumed.tickets_before(e) for e in (1.0, 2.0)] == [0, 4]


class Announced(Split):
    """A split that notes which batches it has been told of."""

    def __init__(self, samples, contiguous, lookahead):
        self.samples, self.contiguous, self.lookahead = samples, contiguous, lookahead
        self.coming = []

    def prepare(self, indices, epoch=0):
        self.coming.append((epoch, indices.tolist()))

    def gather(self, indices, epoch=0):
        raise NotImplementedError


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4)),
    contiguous=st.booleans(),
    lookahead=st.integers(1, 9),
)
def test_batches_are_announced_once_in_their_order_and_as_far_ahead_as_the_split_likes(size, contiguous, lookahead):
    schedule = make(*size, contiguous, epochs=2)
    split, tickets = Announced(size[0], contiguous, lookahead), iter(range(1 << 30))
    loader = Loader(schedule, split, lambda: next(tickets), lambda epoch: None, prepare=True)
    used, most, crosses = [], 0, contiguous or lookahead > 1
    while (batch := loader.next()) is not None:
        used.append((batch.epoch, batch.indices.tolist()))
        most = max(most, len(split.coming) + 1 - len(used))
        if crosses and len(used) < schedule.steps:
            assert len(split.coming) >= len(used)  # the next one, at least
    # All but the first, unless a portion's first can't be known before.
    assert split.coming == used[1:] if crosses else [each for each in used if each in split.coming] == split.coming
    assert most <= lookahead


def test_steps_are_counted_through_shorter_portions_at_the_end_of_epochs():
    schedule = Schedule(Portions(10, 2, 4, 0), epochs=3)
    numbers = [schedule.number(portion, batch) for portion in range(9) for batch in range(schedule.batches(portion))]
    assert [schedule.step(number) for number in numbers] == list(range(15))
    assert numbers[-1] == 16


def test_what_the_end_of_the_run_cuts_off_a_portion_is_left_behind_a_later_one():
    schedule = Schedule(Portions(12, 2, 4, 0), steps=3)
    parts = [schedule.part(1, 0), schedule.part(0, 0)]
    assert schedule.left(parts, schedule.number(0, 1)) == [(1, 1)]
    assert schedule.left(parts, schedule.number(0, 0)) == [(1, 1), (0, 1)]


def test_the_samples_of_a_run_are_those_of_its_batches():
    assert Schedule(Portions(10, 4, 4, 0), epochs=3).samples_in_all == 30
    assert Schedule(Portions(10, 4, 4, 0, drop_last=True), steps=5).samples_in_all == 20


def test_a_loader_keeps_what_the_end_of_the_run_cuts_off_a_portion():
    schedule, tickets = Schedule(Portions(12, 2, 4, 0), steps=3), iter((1, 0, 2))
    loader = Loader(schedule, numbered(12), tickets.__next__, lambda epoch: None)
    assert [loader.next().number for _ in range(3)] == [2, 0, 1]
    assert loader.next() is None
    assert loader.unfinished() == [(1, 1)]


def test_what_follows_in_a_portion_that_was_begun_before():
    loader = Loader(make(12, 2, 3, epochs=1), numbered(12), iter(()).__next__, lambda epoch: None, resumed=[(0, 1)])
    assert loader.next().number == 1
    assert [batch.number for batch in loader.coming(9)] == [2]
