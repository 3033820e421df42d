"""Workers that take portions, die and are settled (`settling`) by the package's own code, in every order of accesses.

Each access of a worker to the coordinator's memory is a step. A settlement reads and writes that memory itself: before
each of its accesses others may go on, also other settlements where it holds no lock, and its own process may die. What
others do somewhere else in the memory gives the same before and after an access: only one of the two is tried.
"""

import functools
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

from mpidl.data.schedule import Portions, Schedule
from mpidl.rma.orders import Orders
from mpidl.rma.tickets import Tickets
from mpidl.roles.ticket_taker import TicketTaker
from mpidl.storage.position import Position, ReplicaPosition, cut_position
from mpidl.transport import protocol
from mpidl.transport.protocol import NO_MORE, WORKER_STATUS, Control, State

NUMBERS = WORKER_STATUS.itemsize // 8


class Waits(Exception):
    """A worker has come as far as it has seen the memory, or a settlement looks again later."""


class Layout:
    """Where regions are in the coordinator's memory, an array of int64."""

    def __init__(self, workers):
        sizes = {
            "control": len(Control),
            "takings": workers * protocol.TAKINGS_ROW,
            "given_back": protocol.GIVEN_BACK * protocol.GIVEN_BACK_WIDTH,
            "workers": workers * NUMBERS,
        }
        ends = np.cumsum([*sizes.values()]).tolist()
        self.size, self.workers = ends[-1], workers
        self.begin = dict(zip(sizes, [0, *ends], strict=False))

    def shared(self, window, processes=None, backoff=None):
        """Return what stands for a `SharedState` of ranks of which the first one coordinates."""
        return SimpleNamespace(
            window=window, processes=processes, backoff=lambda: backoff, workers=range(1, 1 + self.workers),
            roles=SimpleNamespace(coordinator=0), turn=SimpleNamespace(pass_on=lambda: None),
        )  # fmt: skip


class Window:
    """The verbs of a worker; `access(operate, first, last, writes)` does something to a part of the memory."""

    def __init__(self, layout, access):
        self._layout, self._access = layout, access

    def _reach(self, operate, name, offset, count, writes=True):
        first = self._layout.begin[name] + offset
        return self._access(operate, first, first + count, writes)

    def put(self, values, rank, name, offset=0):
        given = values.tolist()
        self._reach(lambda place: place.__setitem__(slice(None), given), name, offset, len(given))

    def get(self, values, rank, name, offset=0):
        values.ravel()[:] = self._reach(lambda place: tuple(place.tolist()), name, offset, values.size, False)

    def fetch_and_op(self, value, before, rank, name, offset, op):
        given = int(value[0])

        def operate(place):
            found = int(place[0])
            place[0] = max(found, given) if op == MPI.MAX else found + given
            return found

        before[0] = self._reach(operate, name, offset, 1)

    supports_deferred_get = False

    def to(self, rank):
        return self

    def fence(self, rank):
        pass

    flush = fence


class Program:
    """What a worker does next, given what it has seen: it takes portions of a batch of one sample.

    Each takes as many as `takes` says, but for the last one, which takes all that is left.
    """

    def __init__(self, layout, portions, takes):
        self.layout, self.portions, self.takes = layout, portions, takes
        self.next = functools.cache(self._next)

    def schedule(self):
        return Schedule(Portions(self.portions, 1, 1, 0), epochs=1)

    def _next(self, number, seen):
        """Return an access and its place, None at the end, or how much it has to see again; and what it has taken."""
        answers, coming = iter(seen), []
        at, taken, schedule = 0, [], self.schedule()

        def access(*coming_next):
            nonlocal at
            if at == len(seen):
                coming.append(coming_next)
                raise Waits
            at += 1
            return next(answers)

        def until(ready):
            begun = at
            if not ready():
                coming.append(begun)
                raise Waits

        shared = self.layout.shared(Window(self.layout, access), backoff=SimpleNamespace(until=until))
        taker, orders = TicketTaker(schedule, SimpleNamespace(obey_cut=lambda cut: None)), Orders(shared, 0)
        taker.bind(SimpleNamespace(tickets=Tickets(shared, number), orders=orders))
        with suppress(Waits):
            while number == len(self.takes) or len(taken) < self.takes[number]:
                orders.read()
                if (part := schedule.assignment(ticket := taker.take())) is None:
                    break
                taken.append((ticket, part.portion))
            state = self.layout.begin["workers"] + number * NUMBERS
            access(lambda place: place.__setitem__(0, State.TRAINED), state, state + 1, True)
        return coming[0] if coming else None, taken


class Situation:
    """The memory, what each worker has seen of it, and who has died.

    `deaths` of the first `mortals` workers may die, and settlements `again` times; `stops` says whether the coordinator
    ends the training. The last worker doesn't die, and begins when all others have ended.
    """

    def __init__(self, program, deaths=1, again=0, stops=False, mortals=9):
        self.program, self._mortals = program, mortals
        self.memory = np.zeros(program.layout.size, np.int64)
        self.processes = np.arange(1 + program.layout.workers)
        self.seen = [()] * program.layout.workers
        self.deaths, self.again, self.stops, self.issued = deaths, again, stops, None
        #: Of dead workers: whether they are settled, what was computed in their place, and their positions.
        self.settled, self.settling, self.locked, self.waits = {}, (), False, False

    def copy(self):
        other = object.__new__(Situation)
        other.__dict__ |= self.__dict__ | {
            "memory": self.memory.copy(), "processes": self.processes.copy(), "seen": list(self.seen),
            "settled": dict(self.settled),
        }  # fmt: skip
        return other

    @property
    def key(self):
        settled = tuple((number, *each[:2]) for number, each in sorted(self.settled.items()))
        settling = tuple((each.number, each.steps, each.digest) for each in self.settling)
        limits = self.deaths, self.again, self.stops, self.locked, self.waits
        seen = tuple(self.seen[number] for number in [*self.first, -1])
        return self.memory.tobytes(), self.processes.tobytes(), seen, settled, settling, limits

    @property
    def dead(self):
        return [number for number, process in enumerate(self.processes[1:].tolist()) if process != 1 + number]

    @property
    def unsettled(self):
        being = [each.number for each in self.settling]
        return [number for number in self.dead if not self.settled.get(number, (False,))[0] and number not in being]

    def next(self, number):
        """Return what a worker does next, and where: None if it has ended."""
        return self.program.next(number, self.seen[number])[0]

    @property
    def training(self):
        """The living workers that have not ended."""
        found = [number for number in self.first if self.next(number) is not None]
        last = len(self.seen) - 1
        return found or (
            [last] if not self.settling and (self.waits or not self.unsettled) and self.next(last) is not None else []
        )

    @property
    def first(self):
        """The living workers but for the last one."""
        return [number for number, process in enumerate(self.processes[1:-1].tolist()) if process == 1 + number]

    @property
    def doomed(self):
        """The workers that may die now."""
        return [number for number in self.first if number < self._mortals] if self.deaths else []

    def step(self, number):
        """Let a worker go on."""
        operate, first, last, _ = self.next(number)
        self.waits = False
        self.seen[number] += (operate(self.memory[first:last]),)
        if isinstance(again := self.next(number), int):
            self.seen[number] = self.seen[number][:again]

    def advance(self, number, first=0, last=0, writes=False):
        """Let a worker go on until it meets an access of a part of the memory; return whether it does."""
        while (coming := self.next(number)) is not None:
            before = self.seen[number]
            self.step(number)
            if coming[1] < last and first < coming[2] and (writes or coming[3]):
                return True
            if len(self.seen[number]) <= len(before):
                return False
        return False

    def meets(self, number, *place):
        memory, seen = self.memory.copy(), list(self.seen)
        found = self.advance(number, *place)
        self.memory[:], self.seen = memory, seen
        return found

    def die(self, number):
        self.deaths -= 1
        self.processes[1 + number] = len(self.seen)

    def stop(self):
        """Hand out no more portions; then show how many have been handed out."""
        if self.issued is None:
            self.issued, self.memory[Control.TICKETS] = int(self.memory[Control.TICKETS]), NO_MORE
        else:
            self.memory[Control.TAKEN], self.stops = self.issued, False

    def moves(self, place=None):
        """Return what others may do, as functions; only what leads to a place, if that is given."""
        if place is None:
            # Nothing that others do now differs from what they do before a death, or in a settlement.
            free = self.waits or not self.unsettled
            alone = self.training == [len(self.seen) - 1]
            move = self.advance if alone else self.step
            moves = [functools.partial(move, number) for number in self.training if free]
        else:
            reaching = [number for number in self.training if self.meets(number, *place)]
            moves = [functools.partial(self.advance, number, *place) for number in reaching]
        element = Control.TICKETS if self.issued is None else Control.TAKEN
        moves += [self.stop] if self.stops and (place is None or place[0] <= element < place[1]) else []
        return moves + [functools.partial(self.die, number) for number in self.doomed if not place]


def faults(end):
    """Return what is wrong at an end, if anything is."""
    if end.unsettled or end.training:
        return f"worker {[*end.unsettled, *end.training]} waits for ever"
    computed, replicas, schedule = [], [], end.program.schedule()
    for number, seen in enumerate(end.seen):
        if number in end.dead:
            _, portions, position = end.settled[number]
        else:
            _, taken = end.program.next(number, seen)
            portions = [portion for _, portion in taken]
            recent = [ticket for ticket, _ in taken]
            position = ReplicaPosition(batches=len(taken), samples=len(taken), recent=recent)
        computed += portions
        replicas.append(position)
    begin, rows = end.program.layout.begin["given_back"], int(end.memory[Control.GIVEN_BACK])
    given_back = end.memory[begin:][: protocol.GIVEN_BACK * protocol.GIVEN_BACK_WIDTH].reshape(protocol.GIVEN_BACK, -1)
    parts = {-1 - number: tuple(given_back[number, :2].tolist()) for number in range(rows)}
    taken = int(end.memory[Control.TICKETS]) if end.issued is None else end.issued
    start = Position(0, 0, 0.0, 0, [])
    position = cut_position(start, replicas, schedule, taken=taken, seconds=0.0, given_back=parts)
    left = [*(portion for portion, _ in position.unfinished), *range(position.next_portion, schedule.tickets)]
    if sorted([*computed, *left]) != list(range(schedule.tickets)):
        return f"computed: {sorted(computed)}, left by the checkpoint: {left}"
    if end.issued is None and left:
        return f"no worker computes {left}"
    if position.samples != len(computed):
        return f"computed: {sorted(computed)}, samples of the checkpoint: {position.samples}"
    return None
