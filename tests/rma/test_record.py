"""The record of a rank in its memory, of which a death in the midst of writing leaves the one before."""

import numpy as np
import pytest

from mpidl.rma.coordinator import Record
from mpidl.rma.regions import RECORDS

BYTES = RECORDS * 256


class Memory:
    """A window of one region; `sync` may be where the process dies."""

    def __init__(self):
        self.values, self.syncs = np.zeros(BYTES, np.uint8), 0

    def local(self, name):
        return self.values

    def sync(self):
        self.syncs -= 1
        if self.syncs == 0:
            raise KeyboardInterrupt


def test_the_last_record_is_read_by_another_process():
    memory = Memory()
    assert Record(memory).read() is None
    for number in range(5):
        Record(memory).write(b"state %d" % number)
        assert Record(memory).read() == b"state %d" % number
    Record(memory).write(bytes(BYTES))
    assert Record(memory).read() is None, "one that has no room is none, lest an earlier one be taken for it"


@pytest.mark.parametrize("written", range(3))
def test_a_record_that_was_being_written_is_not_read(written):
    memory = Memory()
    for number in range(written):
        Record(memory).write(b"state %d" % number)
    before, after, content = memory.values.copy(), memory.values, b"the next, longer one"
    memory.syncs = 1
    with pytest.raises(KeyboardInterrupt):
        Record(memory).write(content)
    # The process has died at any byte of what it had written so far.
    for end in np.flatnonzero(before != after):
        memory.values = before.copy()
        memory.values[:end] = after[:end]
        assert Record(memory).read() == (b"state %d" % (written - 1) if written else None)
    memory.values = after
    Record(memory).write(b"by another")
    assert Record(memory).read() == b"by another"
