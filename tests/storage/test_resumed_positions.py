"""A run that is resumed from wherever it was cut applies every sample of each epoch exactly once."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mpidl.data import Portions
from mpidl.data.dataset import ArraySplit
from mpidl.data.loader import Loader
from mpidl.data.schedule import Schedule
from mpidl.storage.position import Position, ReplicaPosition, cut_position

START = Position(0, 0, 0.0, 0, [])


class Worker:
    """Computes batches and pushes what it has computed since its last push, as a worker on a rank does.

    Attributes
    ----------
    pushed, kept : Counter
        Samples by (epoch, index) that were pushed, and that were computed and not pushed yet.
    """

    def __init__(self, run, number, before=None):
        self._run, self._number = run, number
        working, self._before = [], 0
        self._resumed_working = working
        self._unpushed, self.kept, self.pushed = [], Counter(), Counter()
        self.ended = False
        if before is not None:
            position, kept = before
            working, self._unpushed, self.kept = position.working, list(position.unpushed), Counter(kept)
            self._resumed_working = working
            self._before = position.tickets if run.counts_on else 0
        self._turn, self._recent = self._before, []
        self.marked = 0
        # What it remembers of what it has taken: first what it goes on with.
        self._resumed = [run.schedule.part(*part) for part in rest_of(self._unpushed, working)]
        self._tickets, self._last = [], -1
        self._lost = None
        split = ArraySplit(np.zeros((run.schedule.portions.samples, 1)), np.zeros(run.schedule.portions.samples, int))
        split.contiguous = run.schedule.portions.contiguous
        self._loader = Loader(run.schedule, split, self._take, lambda epoch: None, working, ask=self._ask)
        self._asked = None
        self._batches = self._samples = 0
        self._unused = None

    def _ask(self):
        """Ask for a ticket, if this run's tickets travel; it is taken at once, and known when it is waited for."""
        if self._run.asks and not self._run.in_turn:
            assert self._asked is None
            self._asked = self._next_ticket()
        return self._asked is not None

    def _next_ticket(self):
        self._run.taken += 1
        return self._run.taken - 1

    def _take(self):
        if self._run.in_turn:
            self._turn += 1
            return self._number + (self._turn - 1) * self._run.workers
        ticket = self._run.offered(self)
        if ticket is None:
            ticket, self._asked = self._next_ticket() if self._asked is None else self._asked, None
            self._recent.append(ticket)
            if self._run.schedule.assignment(ticket) is None:
                ticket = self._run.offered(self) or ticket
        self._tickets.append(ticket)
        return ticket

    def take(self):
        """Take a batch, which is computed next."""
        self._unused = self._loader.next()
        return self._unused is not None

    def step(self):
        """Compute a batch; after the last, push the rest."""
        if self._unused is None and not self.take():
            self.ended = True
            self.push()
            return
        batch, self._unused = self._unused, None
        portion, done = self._loader.current.portion, self._loader.done
        self.kept.update((batch.epoch, index) for index in batch.indices.tolist())
        self._unpushed.append((portion, done - 1, done))
        self._batches += 1
        self._samples += len(batch.indices)

    def push(self):
        self.pushed += self.kept
        if self._unpushed:
            portion, _, last = self._unpushed[-1]
            self._last = self._run.schedule.number(portion, last - 1)
        self.kept, self._unpushed = Counter(), []

    def die(self):
        """End; another gives back what this one has taken and not pushed."""
        taken = [self._run.schedule.assignment(ticket) for ticket in self._tickets]
        parts = [*self._resumed, *(part for part in taken if part is not None)]
        left = self._run.schedule.left(parts, self._last)
        self._run.give_back(left, self.marked)
        lost = [self._run.schedule.part(*part) for part in left]
        taken = [self._run.schedule.part(*part) for part in self._resumed_working] + taken
        self._lost = self._sizes(taken, lost)
        self.ended, self.kept, self._unpushed = True, Counter(), []

    def _sizes(self, taken, lost):
        """Return the batches and samples that it has pushed since the run began, less those that it had computed."""
        size, found = self._run.schedule.samples, [0, 0]
        for sign, parts in ((1, taken), (-1, lost)):
            for part in parts:
                if part is not None:
                    found[0] += sign * (part.last - part.first)
                    found[1] += sign * size(*part)
        return found

    def look(self, taken):
        """Forget what all know: tickets below `taken` had been taken before the next order."""
        self._recent = [ticket for ticket in self._recent if ticket >= taken]

    @property
    def position(self):
        if self._lost is not None:
            batches, samples = self._lost
            return ReplicaPosition(batches=batches, samples=samples, recent=list(self._tickets))
        return ReplicaPosition(
            batches=self._batches,
            samples=self._samples,
            unpushed=list(self._unpushed),
            working=self._loader.unfinished(int(self._unused is not None)),
            tickets=self._before + self._loader.tickets,
            recent=[*self._recent, *self._loader.retaken],
        )


def rest_of(unpushed, working):
    """Return portions in use, each with the first batch that is not pushed."""
    firsts = {}
    for portion, first in [*((portion, first) for portion, first, _ in unpushed), *working]:
        firsts[portion] = min(first, firsts.get(portion, first))
    return firsts.items()


class Run:
    """Workers that share a counter of tickets, or take tickets in turn."""

    def __init__(self, portions, steps, workers, in_turn, asks, start=START, kept=None):
        self.schedule = Schedule(portions, None, steps, start.next_portion, start.unfinished)
        self.start, self.workers, self.in_turn, self.asks = start, workers, in_turn, asks
        self.counts_on, self.taken = start.beginning is not None, 0
        # Workers learn from time to time how many tickets had been taken. Who looks after an order marks it.
        self.shown, self.ordered = 0, False
        # What workers have given back, each with the last order that they had marked.
        self.order, self._returned, self._claimed = 0, [], set()
        before = list(zip(start.replicas, kept, strict=True)) if kept is not None else [None] * workers
        self.all = [Worker(self, number, each) for number, each in enumerate(before)]

    def give_back(self, parts, marked):
        for part in parts:
            self._returned.append((self.schedule.give_back(*part), marked))

    def offered(self, worker):
        """Return the ticket of what another has given back, if there is any left."""
        for ticket, marked in self._returned:
            if ticket not in self._claimed:
                if worker.marked < marked:
                    self.mark(worker)
                self._claimed.add(ticket)
                return ticket
        return None

    def mark(self, worker):
        """Let a worker mark the order that was given last."""
        number = self.all.index(worker)
        self.marks[number], self.kept[number] = worker.position, worker.kept.copy()
        self.contained += worker.pushed
        worker.marked = self.order

    def go_on(self, random, actions, deaths=0.0):
        """Let workers of any speed compute and push, and some of them die."""
        for _ in range(actions):
            if not self.ordered and random.random() < 0.3:
                self.shown = self.taken
            worker, action = random.choice(self.all), random.random()
            if worker.ended:
                continue
            living = sum(not other.ended for other in self.all)
            if random.random() < deaths and living > 1 and not (self.in_turn or self.asks):
                worker.die()
            elif action < 0.3:
                worker.push()
            elif action < 0.4:
                worker.look(self.shown)
            else:
                worker.step()

    def cut(self, random, deaths=0.0):
        """Order a checkpoint, which each worker marks when it likes; return its position and what is in it."""
        taken, self.ordered = self.taken, True
        self.order += 1
        self.marks, self.kept, self.contained = [None] * self.workers, [Counter()] * self.workers, Counter()
        for number in random.sample(range(self.workers), self.workers):
            self.go_on(random, random.randrange(8), deaths)
            worker = self.all[number]
            if not worker.ended and random.random() < 0.3:
                worker.take()
            if worker.marked < self.order:
                self.mark(worker)
        parts = self.schedule.given_back
        given_back = {ticket: parts[ticket] for ticket, marked in self._returned if marked < self.order}
        position = cut_position(
            self.start, self.marks, self.schedule, taken=None if self.in_turn else taken,
            seconds=1.0 + self.start.seconds, given_back=given_back,
        )  # fmt: skip
        return Position.of(position.attributes()), self.contained, self.kept

    def finish(self, random, deaths=0.0):
        while not all(worker.ended for worker in self.all):
            self.go_on(random, 10, deaths)
        return sum((worker.pushed for worker in self.all), Counter())


def samples_of(portions, steps):
    """Return the samples of a run's first batches, by (epoch, index)."""
    batches = []
    portion = 0
    while len(batches) < steps:
        batches += portions.minibatches(portion)
        portion += 1
    return Counter((each.epoch, index) for each in batches[:steps] for index in each.indices.tolist())


def batches_of(samples, portions):
    """Return the number of batches that consist of these samples, by (epoch, index)."""
    batches = 0
    for portion in range(portions.per_epoch * (1 + max([epoch for epoch, _ in samples], default=-1))):
        for each in portions.minibatches(portion):
            found = {(each.epoch, index) in samples for index in each.indices.tolist()}
            assert len(found) == 1, "a batch is pushed as a whole"
            batches += found.pop()
    return batches


@st.composite
def data(draw):
    samples, batch, batches = draw(st.integers(1, 60)), draw(st.integers(1, 7)), draw(st.integers(1, 4))
    return Portions(samples, batch, batch * batches, seed=3, contiguous=draw(st.booleans()))


@settings(max_examples=150)  # Wrong positions are rare.
@given(
    portions=data(),
    steps=st.integers(1, 80),
    more=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    random=st.randoms(use_true_random=True),
)
def test_every_sample_is_applied_exactly_once_however_often_a_run_is_resumed(portions, steps, more, random):
    """With the same replicas or others, in turn or not, longer or not; cut anywhere, and in any order; some die."""
    deaths = random.choice([0.0, 0.05])
    applied, start, kept = Counter(), START, None
    workers, in_turn, asks = random.randint(1, 4), random.random() < 0.5, random.random() < 0.5
    for longer in more:
        run = Run(portions, steps, workers, in_turn, asks, start, kept)
        run.go_on(random, random.randrange(random.choice([1, 8, 60])), deaths)
        position, pushed, computed = run.cut(random, deaths)
        applied += pushed
        assert position.samples == applied.total()
        assert position.epoch == applied.total() / portions.samples
        assert position.step == batches_of(applied, portions)
        steps, in_turn = steps + longer, random.random() < 0.5
        if random.random() < 0.5:
            start, kept = position.with_replicas(run.schedule, in_turn), computed
            both = sum(kept, applied)
            assert start.samples == both.total()
            assert start.step == batches_of(both, portions)
        else:
            start, kept, workers = position, None, random.randint(1, 4)
    run = Run(portions, steps, workers, in_turn, asks, start, kept)
    assert applied + run.finish(random, deaths) == samples_of(portions, steps)
