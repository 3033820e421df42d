"""The position of a checkpoint in the data and in the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from mpidl.data.sampling import OwnPosition
from mpidl.data.schedule import Assignment, Schedule


class ReplicaPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of one replica when it marked a checkpoint; its vectors, if any, are in a file of their own.

    Attributes
    ----------
    batches, samples : int
        Minibatches and samples computed since the run began or was resumed.
    unpushed : list of (int, int, int)
        Batches not pushed yet: a portion, its first such batch, and the batch after the last.
    working : list of (int, int)
        Portions in use, each with its next batch.
    tickets : int
        Number of portions taken in turn; the count continues when it is resumed.
    recent : list of int
        Tickets taken since it last looked for an order, and maybe some before; all tickets of what others gave back.
    portion : int
        The portion of its last batch; -1 before the first.
    clock : int
        Steps counted by `mpidl.algorithms.requests.Clock`.
    fetched : list of list of int
        Each shard's clock at the last fetch.
    counts : dict of str to int
        Those of its `mpidl.algorithms.replica_state.ReplicaState`.
    own : OwnPosition, optional
        How far it is in data of its own.
    cut : bool
        Whether it made no mark itself (see `cut_off`): its vectors are in no file, and `batches` and `samples` are 0.
    """

    batches: int
    samples: int
    unpushed: list[tuple[int, int, int]] = []
    working: list[tuple[int, int]] = []
    tickets: int = 0
    recent: list[int] = []
    portion: int = -1
    clock: int = 0
    fetched: list[list[int]] = []
    counts: dict[str, int] = {}
    own: OwnPosition | None = None
    cut: bool = False


class Position(NamedTuple):
    """The position of a checkpoint in the data and in the run: the pushes that it contains, and the data that are left.

    Attributes
    ----------
    step : int
        Number of minibatches whose gradients have been pushed.
    samples : int
        Number of training samples in them.
    epoch : float
        `samples` over the size of the training data.
    next_portion : int
        First portion that no replica has taken.
    unfinished : list of (int, int)
        Earlier portions that are not used up, each with its first batch that has not been pushed.
    state : dict, optional
        The coordinator's state; None without a coordinator or before its first iteration.
    seconds : float
        Training time so far.
    replicas : list of ReplicaPosition
        The replicas' positions, with the batches that they had computed and not pushed.
    passed_over : list of (int, int)
        The portions of `unfinished` that no replica had taken.
    beginning : (int, list of (int, int)) or None
        In a deterministic run, the `next_portion` and `unfinished` that the replicas' tickets count from.
    rates : dict, optional
        The state of a schedule of rates that follows evaluations.
    owners : list of OwnPosition, optional
        How far each replica is in data of its own, where samples belong to replicas.
    """

    step: int
    samples: int
    epoch: float
    next_portion: int
    unfinished: list[tuple[int, int]]
    state: dict[str, Any] | None = None
    seconds: float = 0.0
    replicas: Sequence[ReplicaPosition] = ()
    passed_over: list[tuple[int, int]] | None = None
    beginning: tuple[int, list[tuple[int, int]]] | None = None
    rates: dict[str, Any] | None = None
    owners: list[OwnPosition] | None = None

    @property
    def at_beginning(self) -> bool:
        """Whether none of the data has been used."""
        return not (self.step or self.next_portion or self.unfinished)

    def attributes(self) -> dict[str, Any]:
        """Return the position as attributes of a checkpoint's index."""
        found = {
            "step": self.step,
            "samples": self.samples,
            "epoch": self.epoch,
            "next_portion": self.next_portion,
            "unfinished": np.array(self.unfinished, np.int64).reshape(-1, 2),
            "seconds": self.seconds,
        }
        more = {saved: getattr(self, name) for name, (saved, _) in _AS_JSON.items()}
        return found | {saved: msgspec.json.encode(value).decode() for saved, value in more.items()}

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Position:
        """Return the position of a checkpoint from its index's attributes.

        Raises
        ------
        KeyError, ValueError
            An attribute is missing or malformed.
        """
        for name in ("step", "samples", "epoch", "next_portion", "seconds"):
            check_number(name, attributes[name])
        more: dict[str, Any] = {
            name: msgspec.json.decode(attributes[saved], type=kind | None) for name, (saved, kind) in _AS_JSON.items()
        }
        return cls(
            int(attributes["step"]),
            int(attributes["samples"]),
            float(attributes["epoch"]),
            int(attributes["next_portion"]),
            [(int(portion), int(done)) for portion, done in attributes["unfinished"]],
            seconds=float(attributes["seconds"]),
            **more | {"replicas": more["replicas"] or ()},
        )

    def with_replicas(self, schedule: Schedule, in_turn: bool) -> Position:
        """Return the position at which the same replicas continue: batches computed and not pushed count as done.

        Replicas take portions `in_turn` in a deterministic run.
        """
        unpushed = [part for replica in self.replicas for part in replica.unpushed]
        samples = self.samples + sum(schedule.samples(*part) for part in unpushed)
        beginning = self.beginning if in_turn else None
        next_portion, unfinished = beginning or (self.next_portion, self.passed_over or [])
        return self._replace(
            step=self.step + sum(last - first for _, first, last in unpushed),
            samples=samples,
            epoch=samples / schedule.portions.samples,
            next_portion=next_portion,
            unfinished=unfinished,
            beginning=beginning,
        )


#: The fields of a `Position` that an index has as JSON: the name of the attribute, and the type.
_AS_JSON: dict[str, tuple[str, Any]] = {
    "replicas": ("replicas", list[ReplicaPosition]),
    "passed_over": ("passed_over", list[tuple[int, int]]),
    "beginning": ("beginning", tuple[int, list[tuple[int, int]]]),
    "rates": ("rates", dict),
    "owners": ("owners", list[OwnPosition]),
    "state": ("coordinator", dict),
}


def cut_position(
    start: Position,
    replicas: Sequence[ReplicaPosition],
    schedule: Schedule,
    *,
    taken: int | None,
    seconds: float,
    given_back: Mapping[int, tuple[int, int]] | None = None,
) -> Position:
    """Return the position of a checkpoint that all replicas have marked.

    The run and `schedule` began or were resumed at `start`, which has the replicas that continue. Tickets below `taken`
    had been taken when the checkpoint was ordered; it is None in a deterministic run, where worker w's i-th ticket is
    w + i * workers. `seconds` is the training time so far. `given_back` has what replicas gave back before they marked
    the checkpoint, as `Schedule.given_back`.
    """
    beyond = {ticket for replica in replicas for ticket in replica.recent}
    beginning = None
    if taken is None:
        workers = len(replicas)
        taken = min(number + replica.tickets * workers for number, replica in enumerate(replicas))
        beyond = {
            number + i * workers
            for number, replica in enumerate(replicas)
            for i in range((taken - number) // workers, replica.tickets)
        }
        beginning = (start.next_portion, list(start.unfinished))
    next_portion, passed_over = schedule.position(taken, {ticket for ticket in beyond if ticket >= taken})
    passed_over += [part for ticket, part in (given_back or {}).items() if ticket not in beyond]
    parts = [part for replica in replicas for part in (*replica.working, *((p, a) for p, a, _ in replica.unpushed))]
    firsts = first_batches([*passed_over, *parts])
    unpushed = [part for replica in replicas for part in replica.unpushed]
    samples = start.samples + sum(replica.samples for replica in replicas)
    samples -= sum(schedule.samples(*part) for part in unpushed)
    step = start.step + sum(replica.batches for replica in replicas) - sum(last - first for _, first, last in unpushed)
    if any(replica.cut for replica in replicas):
        resumed = [part for replica in start.replicas for part in replica.working]
        before = _done(schedule, start.next_portion, [*start.unfinished, *resumed])
        now = _done(schedule, next_portion, firsts.items())
        step, samples = (own + b - a for own, a, b in zip((start.step, start.samples), before, now, strict=True))
    epoch = samples / schedule.portions.samples
    owners = [replica.own for replica in replicas if replica.own is not None]
    return Position(
        step, samples, epoch, next_portion, sorted(firsts.items()), None, seconds, replicas, passed_over, beginning,
        owners=owners or None,
    )  # fmt: skip


def _done(schedule: Schedule, portions: int, left: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the batches and the samples in the first portions of a run, but for what is `left` of them."""
    epochs, within = divmod(portions, schedule.portions.per_epoch)
    batches = epochs * schedule.portions.steps_per_epoch + within * schedule.portions.per_portion
    samples = epochs * schedule.portions.samples + within * schedule.portions.portion
    rest = [(portion, first, schedule.batches(portion)) for portion, first in left]
    return batches - sum(last - first for _, first, last in rest), samples - sum(schedule.samples(*e) for e in rest)


def cut_off(
    before: ReplicaPosition | None, taken: Sequence[tuple[int, Assignment]], claimed: Iterable[int],
    schedule: Schedule, *, last: int, known: int, clock: int,
) -> ReplicaPosition:  # fmt: skip
    """Return the position of a replica for which servers have made the mark behind its pushes.

    Parameters
    ----------
    before : ReplicaPosition or None
        Where it was resumed.
    taken : sequence of (int, Assignment)
        The last tickets that it has taken, in order, maybe some of them since.
    claimed : iterable of int
        All of its tickets for what others gave back.
    schedule : Schedule
    last : int
        Number of the last batch in these pushes, -1 before the first.
    known : int
        Tickets below this number had been taken when the checkpoint was ordered, others may have been taken since.
    clock : int
        Its clock.
    """
    resumed = [] if before is None else [*((portion, first) for portion, first, _ in before.unpushed), *before.working]
    parts = [schedule.part(*each) for each in first_batches(resumed).items()]
    (portion, batch), current = schedule.place(last), -1
    for i, (_, part) in enumerate(taken):
        current = i if last >= 0 and part.portion == portion and part.first <= batch < part.last else current
    # The others count as not taken.
    own = [each for i, each in enumerate(taken) if i <= current or 0 <= each[0] < known]
    since = {ticket for ticket, _ in taken} - {ticket for ticket, _ in own}
    recent = [ticket for ticket, _ in own if ticket >= known] + [ticket for ticket in claimed if ticket not in since]
    working = schedule.left([*parts, *(part for _, part in own)], last)
    return ReplicaPosition(batches=0, samples=0, working=working, recent=recent, clock=clock, cut=True)


def first_batches(parts: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the first of the given batches of each portion."""
    firsts: dict[int, int] = {}
    for portion, first in parts:
        firsts[portion] = min(first, firsts.get(portion, first))
    return firsts


class Best(msgspec.Struct, frozen=True):
    """The best checkpoint of a run: its step, the figure, its value, and the epochs trained before the evaluation.

    Replicas train on during an evaluation, and the checkpoint is ordered when the figure is known, so it may be a few
    batches newer. At the end of a run, it has exactly the parameters that were evaluated.
    """

    step: int
    figure: str
    value: float
    epoch: float


def check_number(name: str, found: Any) -> None:
    """Raise TypeError or ValueError unless an attribute is a number from 0 on of 64 bits."""
    if not 0 <= float(found) < 1 << 63:
        raise ValueError(f"{name} is {found}, expected a number from 0 to 2**63 - 1")
