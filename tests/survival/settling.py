"""Settlements of workers in a memory of `interleavings`, between whose accesses others go on as they like."""

import functools
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
from interleavings import Waits

from mpidl.rma.outboxes import Remains
from mpidl.rma.taken_portions import TakenPortions
from mpidl.survival.worker_recovery import WorkerRecovery
from mpidl.transport.protocol import WORKER_STATUS, Control, Order, Phase


class Died(Exception):
    """The process of a settlement has died."""


class Known(Exception):
    """What follows has been explored."""


class Choices:
    """Answers that lead through a tree of choices, one path after the other."""

    def __init__(self):
        self._path, self._options, self._at, self.seen = [], [], 0, set()

    def paths(self):
        while True:
            self._at = 0
            yield
            while self._path and self._path[-1] + 1 == self._options[-1]:
                self._path.pop(), self._options.pop()
            if not self._path:
                return
            self._path[-1] += 1

    def choose(self, options, key):
        """Return one of a number of options; raise Known if all have been taken in a situation with this key."""
        if self._at == len(self._path):
            if key in self.seen:
                raise Known
            self.seen.add(key)
            self._path.append(0), self._options.append(options)
        self._at += 1
        return self._path[self._at - 1]


class Accesses(np.ndarray):
    """Memory of which each access is a step of a settlement."""

    settling = None

    def __array_finalize__(self, of):
        self.settling = getattr(of, "settling", None)

    def _read(self, read, view=None):
        self.settling.before(self if view is None else view)
        found = read()
        self.settling.saw(np.asarray(found).tobytes())
        return found

    def _part(self, key):
        return self[key : key + 1] if isinstance(key, int) and key >= 0 and self.ndim == 1 else self

    def __getitem__(self, key):
        found = super().__getitem__(key)
        if isinstance(found, Accesses) and found.base is not None:
            return found
        return self._read(lambda: np.asarray(self)[key], self._part(key))

    def __setitem__(self, key, value):
        self.settling.before(self._part(key), writes=True)
        super().__setitem__(key, value)

    def tolist(self):
        return self._read(lambda: np.asarray(self).tolist())

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        plain = [np.asarray(each) if isinstance(each, Accesses) else each for each in inputs]
        options["out"] = tuple(np.asarray(each) for each in options.pop("out", ())) or None
        return self._read(lambda: getattr(ufunc, method)(*plain, **options))


class Settling:
    """The settlement of a worker that has pushed nothing, in one process."""

    def __init__(self, situation, choices, number):
        self.situation, self.number, self._choices = situation, number, choices
        self.steps = self.digest = 0
        self._over = False
        memory = situation.memory.view(Accesses)
        memory.settling, self._address = self, situation.memory.ctypes.data
        self._memory = memory

    # What stands for a window that this process shares.

    def local(self, name):
        layout = self.situation.program.layout
        begin = layout.begin[name]
        following = [each for each in layout.begin.values() if each > begin]
        found = self._memory[begin : min(following, default=layout.size)]
        return found.view(WORKER_STATUS) if name == "workers" else found

    def as_rank(self, rank):
        return self

    def sync(self):
        pass

    # Accesses.

    def before(self, view, writes=False):
        """Let others go on as they like before an access, and this process die before it writes."""
        first = (view.__array_interface__["data"][0] - self._address) // 8
        last = first + 1 + sum((size - 1) * step for size, step in zip(view.shape, view.strides, strict=True)) // 8
        self._let_others(first, last, writes)

    def _let_others(self, first, last, writes):
        situation = self.situation
        self.steps += 1
        while True:
            moves = situation.moves((first, last, writes))
            moves += [self._die] if situation.again and writes else []
            if not (situation.locked or self._over) and self.steps > 1:
                moves += [functools.partial(situation.die, number) for number in situation.doomed]
                moves += [functools.partial(self._another, number) for number in situation.unsettled]
            choice = self._choices.choose(1 + len(moves), situation.key) if moves else 0
            if choice == 0:
                return
            moves[choice - 1]()

    def saw(self, read):
        self.digest = hash((self.digest, read))

    def _die(self):
        self.situation.again -= 1
        raise Died

    def _another(self, number):
        Settling(self.situation, self._choices, number).run()

    # The lock.

    def __enter__(self):
        self._let_others(0, 0, False)
        self.situation.locked = True

    def __exit__(self, *error):
        self.situation.locked, self._over = False, True

    def run(self):
        """Settle the worker, as far as this process lives and does not wait for others."""
        self.situation.settling += (self,)
        with suppress(Waits, Died):
            self._run()
        self.situation.settling = self.situation.settling[:-1]

    @property
    def computed(self):
        return self.situation.settled.get(self.number, (False, ()))[1]

    def _run(self):
        situation, number = self.situation, self.number
        settlement = Pushless(self, situation)
        situation.settled[number] = True, self.computed, settlement.position()


class Pushless(WorkerRecovery):
    """A settlement with what it needs if the worker has pushed nothing."""

    def __init__(self, settling, situation):
        self._number, self._schedule, self._alone = settling.number, situation.program.schedule(), settling
        self._portions = TakenPortions(situation.program.layout.shared(settling, situation.processes))
        self._placed, self._settling, self._situation = SimpleNamespace(replicas_resume=False), settling, situation
        self._status, self._marked, self._backoff = np.zeros(1, WORKER_STATUS), 0, self
        orders = SimpleNamespace(
            read=lambda: Order(0, 0, Phase.TRAIN), taken=lambda: int(situation.memory[Control.TAKEN])
        )  # fmt: skip
        self._link = SimpleNamespace(orders=orders)

    def position(self):
        """Settle the worker; return its position in checkpoints from then on."""
        computed = self._settling.computed
        self._give_back(Remains(computed[-1] if computed else -1, len(computed) - 1, None, 0, False))
        while not self._others_have_taken():
            self.pause()
        return self._position()

    def pause(self):
        self._situation.waits = True
        raise Waits

    def _borrow(self, use):
        use(None)

    def _push(self, model, places):
        ((portion, _),) = places
        self._situation.settled[self._number] = False, (*self._settling.computed, portion)


def explore(first):
    """Yield all situations in which nothing can happen any more."""
    choices, waiting, known = Choices(), [first], set()
    while waiting:
        situation, found, explored = waiting.pop(), [], False
        for move in range(len(situation.moves())):
            after = situation.copy()
            after.moves()[move]()
            found.append(after)
        for number in situation.unsettled:
            for _ in choices.paths():
                after = situation.copy()
                try:
                    Settling(after, choices, number).run()
                    found.append(after)
                except Known:
                    explored = True
        if not explored and all(each.key == situation.key for each in found):
            yield situation
        for each in found:
            if each.key not in known:
                known.add(each.key)
                waiting.append(each)
