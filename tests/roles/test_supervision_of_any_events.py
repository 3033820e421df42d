"""What holds of a supervisor whatever happens, in any order."""

from hypothesis import given
from hypothesis import strategies as st
from supervised import (
    BATCH,
    INTERRUPTED,
    LAST_TEST,
    TEST,
    aiming_at,
    evaluated,
    iterated,
    looked,
    saved,
    supervisor,
    totals,
    trained,
)

from mpidl.roles.events import CheckpointEnded, Finish, Iterated, Looked, Save, Signalled, Started, Stop, TrainingEnded

EVENTS = st.sampled_from(["look", "iterate", "evaluate", "signal", "saved", "saved"])
EVERY, TARGET = 10.0, 0.9


class Watch:
    """Tells a supervisor events, and holds what it answers against what is true of any run."""

    def __init__(self, coordinated, resumed):
        self._run = supervisor(coordinated=coordinated, resumed=resumed, every=EVERY, goal=aiming_at(TARGET))
        self._coordinated = coordinated
        self.now, self.batches, self._ordered = 0.0, 0, 0
        self.interrupted = self.trained = self.writing = False
        self.last_ordered, self._saved_at, self._step, self._samples = False, 0.0, -1, -1
        self.told = []

    def tell(self, event):
        self.interrupted |= isinstance(event, Signalled)
        self.trained |= isinstance(event, TrainingEnded)
        instructions = self._run.handle(event)
        for instruction in instructions:
            assert Finish not in map(type, self.told)
            self.told.append(instruction)
            if isinstance(instruction, Save):
                self._check(instruction, event)
        return instructions

    def _check(self, save, event):
        assert not self.last_ordered, "nothing is ordered after the last checkpoint"
        if save.last:
            assert isinstance(event, Signalled)
            assert not self._coordinated
        else:
            assert not self.writing
        if isinstance(event, Looked | Iterated) and not self.trained:
            assert self.batches > self._ordered
            assert self.now - self._saved_at >= EVERY
        assert (save.position is not None) == self._coordinated
        if save.position is not None:
            assert save.position.step >= self._step
            assert save.position.samples >= self._samples
            self._step, self._samples = save.position.step, save.position.samples
        self.last_ordered = save.last or self.trained
        self._ordered, self._saved_at, self.writing = self.batches, self.now, True

    def write(self):
        self.writing, self._saved_at = False, self.now
        assert self.tell(CheckpointEnded(self.now, self.batches))[0] == saved(self.batches)


@given(
    st.lists(st.tuples(EVENTS, st.integers(0, 8), st.floats(0, 20), st.floats(0, 1)), max_size=40),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)
def test_whatever_happens(happenings, coordinated, resumed, late):
    """What `Watch` checks; one last checkpoint; `Stop` at most and `Finish` just once; nothing after `Finish`."""
    watch, accrued, reached = Watch(coordinated, resumed), 0, False
    first = watch.tell(Started())
    assert len(first) == (not resumed)
    for kind, count, seconds, accuracy in happenings:
        watch.now += seconds
        if kind == "saved" and watch.writing:
            watch.write()
        elif kind == "look":
            watch.batches += 0 if coordinated else count
            due = not watch.interrupted and not watch.writing
            told = watch.tell(looked(watch.now, watch.batches))
            assert due or not told
        elif kind == "iterate" and coordinated:
            watch.batches, accrued = watch.batches + count, accrued + BATCH * count
            iteration = iterated(watch.now, 1, accrued).iteration
            watch.tell(Iterated(totals(watch.now, watch.batches), iteration))
            assert not watch.interrupted or Stop() in watch.told
        elif kind == "evaluate":
            reached |= accuracy >= TARGET
            watch.tell(evaluated(watch.now, accuracy))
            assert not reached or Stop() in watch.told
        elif kind == "signal":
            watch.tell(Signalled())
    watch.tell(trained(watch.now, watch.batches))
    while watch.writing:
        if late == 1:
            watch.tell(Signalled())
        watch.write()
    assert (LAST_TEST in watch.told) != watch.interrupted
    if not watch.interrupted:
        watch.tell(evaluated(watch.now, 0.95))
    told = watch.told
    last = told[-1]
    assert isinstance(last, Finish)
    assert last.interrupted == watch.interrupted
    assert (last.seconds_to_target is not None) == (reached or not watch.interrupted)
    assert sum(isinstance(each, Stop) for each in told) <= 1
    assert told.count(INTERRUPTED) == watch.interrupted
    assert coordinated or TEST not in told
    assert watch.last_ordered
    for event in (Signalled(), evaluated(watch.now, 1.0), looked(watch.now + 99, 99), trained(watch.now, 99)):
        assert watch.tell(event) == []
