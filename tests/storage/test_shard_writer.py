"""Writing a shard's file between other work."""

import h5py
import numpy as np
import pytest

from mpidl.errors import MpidlError
from mpidl.parameters import Range
from mpidl.rules import Adagrad
from mpidl.shards.policies import ApplyAtOnce
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.storage import shard_writer
from mpidl.storage.shard_writer import ShardWriter

SIZE = 1001


@pytest.fixture
def shard():
    return Shard(Range(7, 7 + SIZE), np.arange(SIZE, dtype=np.float32), ScheduledRule(Adagrad(0.1)), ApplyAtOnce(), 100)


def write(writer):
    """Return the number of steps until the file is complete."""
    for number in range(1, 100_000):
        if writer.advance():
            return number
    raise AssertionError("the file is never complete")


def test_without_an_order_there_is_nothing_to_write(shard, tmp_path):
    writer = ShardWriter(shard, 2, tmp_path)
    writer.obey(0, 5)
    assert (writer.active, writer.obeyed, writer.advance()) == (False, 0, False)
    assert not list(tmp_path.iterdir())


def test_the_file_has_the_state_at_the_order_though_the_shard_goes_on(shard, tmp_path, monkeypatch):
    monkeypatch.setattr(shard_writer, "SLICE", 512)
    writer = ShardWriter(shard, 2, tmp_path)
    shard.receive_push(0, 0, np.ones(SIZE, np.float32))
    expected = shard.snapshot()
    writer.obey(1, 5)
    assert (writer.active, writer.obeyed) == (True, 1)
    assert not writer.advance()
    shard.receive_push(0, 1, np.ones(SIZE, np.float32))
    writer.obey(1, 5)
    assert write(writer) > 2 * SIZE * 4 / 512 - 1
    assert not writer.active
    assert not writer.advance()
    assert not np.array_equal(shard.parameters, expected["parameters"])
    with h5py.File(tmp_path / ".5" / "shard-2.h5") as file:
        assert dict(file.attrs) == {"start": 7, "stop": 7 + SIZE, "clock": 1}
        for name, vector in expected.items():
            assert np.array_equal(file[name][...], vector)
    writer.obey(2, 9)
    write(writer)
    assert (tmp_path / ".9" / "shard-2.h5").exists()


def test_what_cannot_be_written_is_one_line(shard, tmp_path):
    (tmp_path / "file").touch()
    writer = ShardWriter(shard, 0, tmp_path / "file")
    writer.obey(1, 5)
    with pytest.raises(MpidlError, match=r"shard-0.h5: can't be written: Not a directory$"):
        write(writer)
